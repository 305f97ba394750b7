//! Element types this engine does not read.

/// ggml's name for a type id this engine does not read, for error texts.
pub(super) fn unsupported_name(id: u32) -> &'static str {
    match id {
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 | 29 => "an IQ type",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        34 | 35 => "a ternary type",
        39 => "MXFP4",
        _ => "unknown",
    }
}
