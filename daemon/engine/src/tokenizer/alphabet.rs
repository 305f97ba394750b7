//! The byte alphabet of GPT-2: a printable character for each of the 256 bytes, so
//! that vocabularies and merges can be written as text.

use std::sync::LazyLock;

/// Characters by byte: printable Latin-1 bytes stand for themselves, the others for
/// the characters from U+0100 on, in order.
static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(byte);
        }
        let c = char::from_u32(next).unwrap_or('\u{fffd}');
        next += 1;
        c
    })
});

/// Bytes of the characters from U+0100 on.
static SHIFTED: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..=255u8).filter(|&b| CHARS[usize::from(b)] >= '\u{100}').collect());

/// The character that stands for a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte a character stands for, if it is in the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xff if CHARS[code as usize] == c => Some(code as u8),
        code => SHIFTED.get(code.checked_sub(0x100)? as usize).copied(),
    }
}

/// The bytes of a text written in the alphabet; `None` if a character is not in it.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}
