//! The methods of the DSP's library: a mirror of `dsp/include/methods.h`, held to it by the
//! tests below.

/// Method: workers, on-chip memory and the queue are set up.
pub(super) const METHOD_START: u32 = 2;
/// Method: the queue is left, memory given back.
pub(super) const METHOD_STOP: u32 = 3;
/// Method: power votes.
pub(super) const METHOD_POWER: u32 = 4;

/// Nothing failed.
pub(super) const AT_NOTHING: u32 = 0;
/// Another version of the packets.
pub(super) const AT_VERSION: u32 = 1;
/// Started twice.
pub(super) const AT_STATE: u32 = 2;
/// The platform refused the client's class.
pub(super) const AT_CLASS: u32 = 3;
/// No on-chip memory.
pub(super) const AT_VTCM: u32 = 4;
/// The queue could not be imported.
pub(super) const AT_QUEUE: u32 = 5;
/// No thread.
pub(super) const AT_THREAD: u32 = 6;

/// `struct tdm_start`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    pub(super) queue: u64,
    pub(super) version: u32,
    pub(super) workers: u32,
    pub(super) vtcm_bytes: u32,
}

/// `struct tdm_started`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Started {
    pub(super) at: u32,
    pub(super) code: u32,
    pub(super) version: u32,
    pub(super) arch: u32,
    pub(super) workers: u32,
    pub(super) vtcm_bytes: u32,
    pub(super) exact: u32,
}

impl Start {
    /// As it travels.
    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.queue.to_le_bytes());
        for (at, word) in [(8, self.version), (12, self.workers), (16, self.vtcm_bytes)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl Started {
    /// From what arrived.
    pub(super) fn from_bytes(bytes: &[u8; 32]) -> Started {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Started {
            at: word(0),
            code: word(4),
            version: word(8),
            arch: word(12),
            workers: word(16),
            vtcm_bytes: word(20),
            exact: word(24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../dsp/include/methods.h");

    #[test]
    fn every_number_of_the_header_is_here_with_its_value() {
        let here = [
            ("METHOD_OPEN", 0),
            ("METHOD_CLOSE", 1),
            ("METHOD_START", METHOD_START),
            ("METHOD_STOP", METHOD_STOP),
            ("METHOD_POWER", METHOD_POWER),
            ("AT_NOTHING", AT_NOTHING),
            ("AT_VERSION", AT_VERSION),
            ("AT_STATE", AT_STATE),
            ("AT_CLASS", AT_CLASS),
            ("AT_VTCM", AT_VTCM),
            ("AT_QUEUE", AT_QUEUE),
            ("AT_THREAD", AT_THREAD),
        ];
        let header: Vec<(&str, u32)> = HEADER
            .lines()
            .filter_map(|line| {
                let mut words = line.strip_prefix("#define TDM_")?.split_whitespace();
                Some((words.next()?, words.next()?.parse().ok()?))
            })
            .collect();
        assert_eq!(header, here);
    }

    #[test]
    fn fields_travel_where_the_header_has_them() {
        let start = Start { queue: 1 << 40 | 7, version: 2, workers: 3, vtcm_bytes: 4 }.to_bytes();
        let started: [u8; 32] = std::array::from_fn(|at| if at % 4 == 0 { at as u8 / 4 + 1 } else { 0 });
        let back = Started::from_bytes(&started);
        let here = [
            ("tdm_start, queue", 0, u32::from(start[0]) == 7 && start[5] == 1),
            ("tdm_start, version", 8, start[8] == 2),
            ("tdm_start, workers", 12, start[12] == 3),
            ("tdm_start, vtcm_bytes", 16, start[16] == 4),
            ("tdm_start, unused", 20, start[20] == 0),
            ("tdm_started, at", 0, back.at == 1),
            ("tdm_started, code", 4, back.code == 2),
            ("tdm_started, version", 8, back.version == 3),
            ("tdm_started, arch", 12, back.arch == 4),
            ("tdm_started, workers", 16, back.workers == 5),
            ("tdm_started, vtcm_bytes", 20, back.vtcm_bytes == 6),
            ("tdm_started, exact", 24, back.exact == 7),
            ("tdm_started, unused", 28, true),
        ];
        let lines: Vec<&str> = HEADER.lines().filter_map(|line| line.strip_prefix("TDM_FIELD(")).collect();
        assert_eq!(lines.len(), here.len());
        for (field, at, holds) in here {
            let line = format!("{field}, {at});");
            assert!(lines.contains(&line.as_str()), "the header has no {line}");
            assert!(holds, "{field} does not travel at {at}");
        }
    }
}
