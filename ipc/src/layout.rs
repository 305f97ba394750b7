//! The memory layout of a shared region: the one place it is drawn.
//!
//! A connection has two regions, each one memfd. The client writes only the
//! *request* region, the daemon writes only the *response* region; each side
//! reads the other's and never trusts it.
//!
//! ```text
//! byte  word  field      written by the region's owner, except the first line
//! ----  ----  ---------  ------------------------------------------------------
//!    0     0  magic      b"TANDEMR1"          \
//!    8     1  abi        ABI_VERSION           | by the daemon, before the region
//!   16     2  capacity   bytes of data, 2^n    | is shared; never read again by it
//!   24     3  direction  1 request, 2 response/
//!   64     8  write      bytes ever put into THIS region's data
//!  128    16  read       bytes ever taken from the OTHER region's data
//!  192    24  sleep      odd while the owner sleeps for frames; +1 at each change
//!  256    32  room       odd while the owner waits for room in its own data
//! 4096   512  data       `capacity` bytes, used as a ring
//! ```
//!
//! A reader's cursor lives in the reader's own region, so the response region
//! can be sealed against every write of the client's.
//!
//! The data is a sequence of frames at 8-byte steps. A frame never has a gap,
//! it wraps byte-wise at the end of the data:
//!
//! ```text
//! bits 0..32   payload length in bytes, 1 ..= frame_cap
//! bits 32..64  zero
//! then         payload, padded with zeros to a multiple of 8
//! ```
//!
//! All words are native-endian `u64`: both sides run on one machine. Zeros are
//! harmless everywhere (`fallocate(PUNCH_HOLE)` is not stopped by the seals):
//! zero cursors are an empty ring or a reported [`Corrupt`](crate::ring::Corrupt),
//! a zero length is `Corrupt`, zero `sleep` and `room` mean "do not ring".

/// Number of this layout and of the message set; both sides must be equal.
pub const ABI_VERSION: u32 = 1;

/// First word of a region.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"TANDEMR1");

/// Bytes in one word, the unit of every access.
pub const WORD: usize = 8;

/// Word index of the magic.
pub const MAGIC_AT: usize = 0;
/// Word index of the ABI version.
pub const ABI_AT: usize = 1;
/// Word index of the data's capacity in bytes.
pub const CAPACITY_AT: usize = 2;
/// Word index of the direction.
pub const DIRECTION_AT: usize = 3;
/// Word index of the owner's write cursor.
pub const WRITE_AT: usize = 8;
/// Word index of the owner's read cursor in the other region.
pub const READ_AT: usize = 16;
/// Word index of the owner's sleep epoch.
pub const SLEEP_AT: usize = 24;
/// Word index of the owner's room epoch.
pub const ROOM_AT: usize = 32;
/// Word index of the first data word.
pub const DATA_AT: usize = 512;

/// Smallest data capacity, bytes.
pub const MIN_CAPACITY: usize = 4096;
/// Largest data capacity, bytes.
pub const MAX_CAPACITY: usize = 1 << 30;

/// Bytes of a frame's length word.
pub const FRAME_HEADER: usize = WORD;

/// Which way the frames of a region travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Client to daemon.
    Request,
    /// Daemon to client.
    Response,
}

impl Direction {
    /// The value of the header's direction word.
    pub const fn word(self) -> u64 {
        match self {
            Direction::Request => 1,
            Direction::Response => 2,
        }
    }

    /// The direction's name in error texts.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Request => "request",
            Direction::Response => "response",
        }
    }
}

/// Whether `capacity` may be a region's data size: a power of two within
/// [`MIN_CAPACITY`] ..= [`MAX_CAPACITY`].
pub const fn capacity_is_valid(capacity: usize) -> bool {
    capacity.is_power_of_two() && capacity >= MIN_CAPACITY && capacity <= MAX_CAPACITY
}

/// Bytes of a whole region whose data holds `capacity` bytes.
pub const fn region_bytes(capacity: usize) -> usize {
    DATA_AT * WORD + capacity
}

/// Largest payload of one frame, bytes: half the data, less the length word. A
/// frame of any legal size therefore fits as soon as half the ring is free.
pub const fn frame_cap(capacity: usize) -> usize {
    capacity / 2 - FRAME_HEADER
}

/// Bytes that a payload of `len` bytes takes in the ring.
pub const fn frame_bytes(len: usize) -> usize {
    FRAME_HEADER + len.next_multiple_of(WORD)
}

/// The first four words of a region, as the daemon writes them before sharing.
pub const fn header(direction: Direction, capacity: usize) -> [u64; 4] {
    [MAGIC, ABI_VERSION as u64, capacity as u64, direction.word()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cursor_has_a_cache_line_of_its_own() {
        let cursors = [WRITE_AT, READ_AT, SLEEP_AT, ROOM_AT, DATA_AT];
        for pair in cursors.windows(2) {
            assert!((pair[1] - pair[0]) * WORD >= 64, "{pair:?}");
        }
        const { assert!(WRITE_AT * WORD >= 64, "cursors start past the header's line") };
    }

    #[test]
    fn the_largest_frame_fits_in_half_the_ring() {
        for shift in 12..=30 {
            let capacity = 1usize << shift;
            assert!(capacity_is_valid(capacity));
            assert!(frame_bytes(frame_cap(capacity)) <= capacity / 2);
        }
    }

    #[test]
    fn odd_capacities_are_refused() {
        for bad in [0, 1, 4095, 2048, 4097, 12288, (1 << 30) + 1, 1 << 31] {
            assert!(!capacity_is_valid(bad), "{bad}");
        }
    }
}
