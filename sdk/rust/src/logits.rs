//! The numeric door: rows of logits, put together from their pieces.

use tandem_ipc::message::ServerMessage;

use crate::error::Error;
use crate::generation::unexpected;

/// The logits of one position of one prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitsRow {
    /// Index of the prompt.
    pub prompt: u32,
    /// Position in the prompt, from 0.
    pub position: u32,
    /// One value a vocabulary entry.
    pub values: Vec<f32>,
}

/// Puts pieces together in the order in which they come.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<LogitsRow>,
}

impl Rows {
    /// Adds one message; true after the last.
    pub(crate) fn add(&mut self, message: ServerMessage) -> Result<bool, Error> {
        let (prompt, position, offset, values) = match message {
            ServerMessage::LogitsRows { prompt, position, offset, values, .. } => {
                (prompt, position, offset, values)
            }
            ServerMessage::LogitsDone { .. } => return Ok(true),
            other => return Err(unexpected(other, "a logits request")),
        };
        if offset == 0 {
            self.rows.push(LogitsRow { prompt, position, values });
            return Ok(false);
        }
        match self.rows.last_mut() {
            Some(row)
                if row.prompt == prompt
                    && row.position == position
                    && row.values.len() == offset as usize =>
            {
                row.values.extend(values);
                Ok(false)
            }
            _ => Err(Error::Protocol(format!(
                "logits of prompt {prompt}, position {position} continue at {offset}, \
                 which does not follow the piece before"
            ))),
        }
    }

    pub(crate) fn into_rows(self) -> Vec<LogitsRow> {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(position: u32, offset: u32, values: &[f32]) -> ServerMessage {
        ServerMessage::LogitsRows { id: 1, prompt: 0, position, offset, values: values.to_vec() }
    }

    #[test]
    fn pieces_become_rows() {
        let mut rows = Rows::default();
        assert!(!rows.add(piece(0, 0, &[1.0, 2.0])).unwrap());
        assert!(!rows.add(piece(0, 2, &[3.0])).unwrap());
        assert!(!rows.add(piece(1, 0, &[4.0])).unwrap());
        assert!(rows.add(ServerMessage::LogitsDone { id: 1 }).unwrap());
        let rows = rows.into_rows();
        assert_eq!(rows[0].values, [1.0, 2.0, 3.0]);
        assert_eq!((rows[1].position, rows.len()), (1, 2));
    }

    #[test]
    fn a_piece_that_leaves_a_gap_is_an_error() {
        let mut rows = Rows::default();
        rows.add(piece(0, 0, &[1.0])).unwrap();
        assert!(rows.add(piece(0, 2, &[3.0])).is_err());
        assert!(rows.add(piece(1, 1, &[3.0])).is_err());
    }
}
