//! A prompt as token ids, with the places a placement policy may want.

use tandem_policy::{Boundary, BoundaryKind};

use super::{MessageStart, Rendered, Role, TemplateError, guard};
use crate::tokenizer::{Piece, Tokenizer, TokenizerError};

/// Token ids to process, and the boundaries between them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// The ids.
    pub tokens: Vec<u32>,
    /// Places, in order, at most one a token: `0 < token < tokens.len()`.
    pub boundaries: Vec<Boundary>,
}

/// Of several things that start at one token, the first of these is told.
fn rank(kind: BoundaryKind) -> u8 {
    match kind {
        BoundaryKind::USER => 0,
        BoundaryKind::MESSAGE => 1,
        BoundaryKind::IMAGE => 2,
        _ => 3,
    }
}

impl Prompt {
    /// A prompt of plain text, markers in it taken as text; starts with the
    /// vocabulary's BOS token where its file asks for that.
    pub fn from_text(tokenizer: &Tokenizer, text: &str) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        tokens.extend(tokenizer.encode(text, false)?);
        Ok(Self::from_parts(tokenizer, tokens, &[]))
    }

    /// A prompt of ready ids, each of which must be a token of the vocabulary.
    pub fn from_tokens(tokenizer: &Tokenizer, tokens: Vec<u32>) -> Result<Self, TokenizerError> {
        tokenizer.check_ids(&tokens)?;
        Ok(Self::from_parts(tokenizer, tokens, &[]))
    }

    fn from_parts(tokenizer: &Tokenizer, tokens: Vec<u32>, starts: &[(usize, Role)]) -> Self {
        let messages = starts.iter().map(|&(token, role)| {
            let kind = if role == Role::User { BoundaryKind::USER } else { BoundaryKind::MESSAGE };
            (token, kind)
        });
        let lines = tokens
            .iter()
            .enumerate()
            .filter(|&(_, &id)| tokenizer.token_bytes(id).contains(&b'\n'))
            .map(|(index, _)| (index + 1, BoundaryKind::LINE));
        let mut places: Vec<_> = messages.chain(lines).collect();
        places.sort_unstable_by_key(|&(token, kind)| (token, rank(kind)));
        places.dedup_by_key(|&mut (token, _)| token);
        let boundaries = places
            .into_iter()
            .filter(|&(token, _)| token > 0 && token < tokens.len())
            .map(|(token, kind)| Boundary { token: token as u32, kind })
            .collect();
        Self { tokens, boundaries }
    }
}

impl Rendered {
    /// Tokenizes: markers the template wrote become their tokens, everything else is
    /// ordinary text, guards removed.
    pub fn prompt(&self, tokenizer: &Tokenizer) -> Result<Prompt, TemplateError> {
        let mut tokens = Vec::new();
        let mut starts = self.starts.iter().copied().peekable();
        let mut placed = Vec::new();
        for piece in tokenizer.pieces(&self.text, true)? {
            match piece {
                Piece::Added(id, at) => {
                    while let Some(start) = starts.next_if(|start| start.at <= at) {
                        placed.push((tokens.len(), start.role));
                    }
                    tokens.push(id);
                }
                Piece::Text(range) => {
                    let mut inside = Vec::new();
                    while let Some(start) = starts.next_if(|start| start.at < range.end) {
                        inside.push(MessageStart { at: start.at.saturating_sub(range.start), ..start });
                    }
                    let piece = &self.text[range];
                    encode_piece(tokenizer, piece, &inside, &mut tokens, &mut placed)?;
                }
            }
        }
        placed.extend(starts.map(|start| (tokens.len(), start.role)));
        Ok(Prompt::from_parts(tokenizer, tokens, &placed))
    }
}

/// Encodes text without markers. A start inside it is placed before the last token
/// that does not begin behind it, so what is before a boundary never holds any of the
/// message.
fn encode_piece(
    tokenizer: &Tokenizer,
    piece: &str,
    starts: &[MessageStart],
    tokens: &mut Vec<u32>,
    placed: &mut Vec<(usize, Role)>,
) -> Result<(), TemplateError> {
    let first = tokens.len();
    let mut offsets = Vec::new();
    tokenizer.encode_text(&guard::without_guards(piece), true, |id, at| {
        tokens.push(id);
        if !starts.is_empty() {
            offsets.push(at);
        }
    })?;
    for start in starts {
        let before = guard::without_guards(&piece[..start.at]);
        let at = tokenizer.normalize(&before).len();
        let index = offsets.partition_point(|&offset| offset <= at).saturating_sub(1);
        placed.push((first + index, start.role));
    }
    Ok(())
}
