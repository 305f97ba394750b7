//! Crafted faults: each must be an error that names the key or tensor, the value and
//! the limit, without memory in proportion to what the file claims.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tandem_engine::gguf::{DType, Gguf, GgufError, GgufWriter};

/// Remembers the largest single allocation: a count that is believed before it is
/// checked shows up here, on whichever thread it happens.
struct LargestAllocation;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for LargestAllocation {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, so from the system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: LargestAllocation = LargestAllocation;

/// Encodes a file field by field, so that it can lie.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn file(tensors: u64, keys: u64) -> Self {
        let mut raw = Self(b"GGUF".to_vec());
        raw.u32(3).u64(tensors).u64(keys);
        raw
    }

    fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, shape: &[u64], ty: u32, offset: u64) -> &mut Self {
        self.text(name).u32(shape.len() as u32);
        for &d in shape {
            self.u64(d);
        }
        self.u32(ty).u64(offset)
    }

    /// Pads to 32 and adds `bytes` of tensor data.
    fn data(&mut self, bytes: usize) -> &mut Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self
    }

    /// The error of opening this, as a person reads it.
    fn error(&self) -> String {
        let error = Gguf::from_bytes(&self.0).expect_err("the file is faulty").to_string();
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < 1 << 20, "an allocation of {largest} bytes was made");
        error
    }
}

const F32: u32 = 0;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    assert_says(&Raw(b"PK\x03\x04....".to_vec()).error(), &["not a GGUF file", "50, 4b"]);
    assert_says(&Raw(Vec::new()).error(), &["not a GGUF file"]);
}

#[test]
fn an_unknown_or_big_endian_version_is_refused() {
    let mut raw = Raw(b"GGUF".to_vec());
    assert_says(&raw.u32(3u32.swap_bytes()).u64(0).u64(0).error(), &["version", "0x3000000"]);
}

#[test]
fn a_tensor_count_of_2_to_the_63_is_refused() {
    assert_says(&Raw::file(1 << 63, 0).error(), &["tensor count", "9223372036854775808", "65536"]);
}

#[test]
fn a_key_count_of_2_to_the_63_is_refused() {
    assert_says(&Raw::file(0, 1 << 63).error(), &["key count", "9223372036854775808", "16384"]);
}

#[test]
fn a_count_within_limits_but_beyond_the_file_is_refused() {
    assert_says(&Raw::file(60_000, 0).error(), &["truncated", "tensor 0", "needs 8", "has 0"]);
    assert_says(&Raw::file(0, 16_000).error(), &["truncated", "metadata key 0"]);
}

#[test]
fn a_key_longer_than_its_limit_is_refused() {
    let mut raw = Raw::file(0, 1);
    assert_says(&raw.u64(u64::MAX).error(), &["length of metadata key 0", "512"]);
}

#[test]
fn a_string_longer_than_the_file_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("general.name").u32(STRING).u64(1 << 62);
    assert_says(&raw.error(), &["general.name", "4611686018427387904"]);
}

#[test]
fn a_string_array_bomb_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("tokenizer.ggml.tokens").u32(ARRAY).u32(STRING).u64(1 << 61);
    assert_says(&raw.error(), &["tokenizer.ggml.tokens", "2305843009213693952"]);
    // A count the file could hold as empty strings, whose first string lies.
    let mut raw = Raw::file(0, 1);
    raw.text("tokenizer.ggml.merges").u32(ARRAY).u32(STRING).u64(2).u64(u64::MAX).u64(0);
    assert_says(&raw.error(), &["tokenizer.ggml.merges", "truncated"]);
}

#[test]
fn a_number_array_whose_size_overflows_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("x.sizes").u32(ARRAY).u32(10).u64((1 << 61) + 1);
    assert_says(&raw.error(), &["x.sizes", "truncated"]);
}

#[test]
fn an_array_of_arrays_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("x.deep").u32(ARRAY).u32(ARRAY).u64(1);
    assert_says(&raw.error(), &["x.deep", "array of arrays"]);
}

#[test]
fn an_unknown_value_type_is_refused() {
    let mut raw = Raw::file(0, 1);
    assert_says(&raw.text("x.odd").u32(13).u64(0).error(), &["x.odd", "13"]);
}

#[test]
fn a_bool_of_two_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("x.flag").u32(7).0.push(2);
    assert_says(&raw.error(), &["x.flag", "bool value 2"]);
}

#[test]
fn a_duplicate_key_is_refused() {
    let mut raw = Raw::file(0, 2);
    raw.text("x.n").u32(4).u32(1).text("x.n").u32(4).u32(2);
    assert_says(&raw.error(), &["\"x.n\"", "twice"]);
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.u64(2).0.extend([0xff, 0xfe]);
    assert_says(&raw.error(), &["metadata key 0", "UTF-8"]);
    let mut raw = Raw::file(0, 1);
    raw.text("general.name").u32(STRING).u64(1).0.push(0xc0);
    assert_says(&raw.error(), &["general.name", "UTF-8"]);
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for value in [0, 24, 1 << 20] {
        let mut raw = Raw::file(0, 1);
        raw.text("general.alignment").u32(4).u32(value);
        assert_says(&raw.error(), &["general.alignment", &value.to_string(), "power of two"]);
    }
    let mut raw = Raw::file(0, 1);
    raw.text("general.alignment").u32(STRING).text("32");
    assert_says(&raw.error(), &["general.alignment", "string", "u32"]);
}

#[test]
fn a_split_model_is_refused() {
    let mut raw = Raw::file(0, 1);
    raw.text("split.count").u32(2).0.extend(4u16.to_le_bytes());
    assert_says(&raw.error(), &["split", "4 files"]);
}

#[test]
fn a_zero_dimension_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("token_embd.weight", &[64, 0], F32, 0).data(256);
    assert_says(&raw.error(), &["token_embd.weight", "dimension 1", "[64, 0]"]);
}

#[test]
fn no_dimensions_and_too_many_are_refused() {
    for rank in [0, 5, u32::MAX] {
        let mut raw = Raw::file(1, 0);
        raw.text("a.weight").u32(rank).data(64);
        assert_says(&raw.error(), &["a.weight", &rank.to_string(), "1 to 4"]);
    }
}

#[test]
fn a_shape_whose_product_overflows_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[1 << 32, 1 << 32, 1 << 32], F32, 0).data(64);
    assert_says(&raw.error(), &["a.weight", "4294967296", "larger"]);
    // Overflows only when multiplied by the element size.
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[1 << 31, 1 << 31], F32, 0).data(64);
    assert_says(&raw.error(), &["a.weight", "2147483648"]);
}

#[test]
fn an_unsupported_element_type_is_refused_by_name() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[256], 10, 0).data(256);
    assert_says(&raw.error(), &["a.weight", "Q2_K", "Q4_K"]);
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[256], 4_000_000_000, 0).data(256);
    assert_says(&raw.error(), &["a.weight", "4000000000", "unknown"]);
}

#[test]
fn a_row_of_partial_blocks_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[128, 2], DType::Q4_K.ggml_id(), 0).data(256);
    assert_says(&raw.error(), &["a.weight", "128", "Q4_K", "256"]);
}

#[test]
fn a_misaligned_tensor_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[8], F32, 16).data(64);
    assert_says(&raw.error(), &["a.weight", "16", "alignment 32"]);
}

#[test]
fn a_tensor_that_reaches_past_the_file_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[16], F32, 32).data(64);
    assert_says(&raw.error(), &["a.weight", "64 bytes", "offset 32", "has 64"]);
}

#[test]
fn an_offset_that_overflows_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor("a.weight", &[16], F32, u64::MAX - 31).data(64);
    assert_says(&raw.error(), &["a.weight", "18446744073709551584"]);
}

#[test]
fn a_duplicate_tensor_is_refused() {
    let mut raw = Raw::file(2, 0);
    raw.tensor("a.weight", &[8], F32, 0).tensor("a.weight", &[8], F32, 32).data(64);
    assert_says(&raw.error(), &["a.weight", "twice"]);
}

#[test]
fn overlapping_tensors_are_refused() {
    let mut raw = Raw::file(2, 0);
    raw.tensor("b.weight", &[8], F32, 32).tensor("a.weight", &[9], F32, 0).data(64);
    assert_says(&raw.error(), &["a.weight", "b.weight", "36", "32"]);
}

#[test]
fn a_name_longer_than_its_limit_is_refused() {
    let mut raw = Raw::file(1, 0);
    raw.tensor(&"n".repeat(128), &[8], F32, 0).data(64);
    assert_says(&raw.error(), &["name of tensor 0", "128", "127"]);
}

/// A valid file with a key of each kind and two tensors.
fn valid() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer
        .str("general.architecture", "qwen35")
        .u32("qwen35.block_count", 4)
        .f32("qwen35.rope.freq_base", 1e7)
        .bool("tokenizer.ggml.add_bos_token", false)
        .u32s("a.u32s", &[1, 2, 4_000_000_000])
        .i32s("a.i32s", &[-1, 0, 1])
        .bools("a.bools", &[true, false])
        .strings("tokenizer.ggml.tokens", &["a", "", "\u{e9}"]);
    writer.tensor("a.weight", DType::F32, &[3, 2]).expect("a valid shape");
    writer.tensor("b.weight", DType::Q8_0, &[64]).expect("a valid shape");
    let mut file = Vec::new();
    writer
        .write(&mut file, |name, out| match name {
            "a.weight" => out.write_all(&[7; 24]),
            _ => out.write_all(&[9; 68]),
        })
        .expect("a vector takes every write");
    file
}

#[test]
fn what_the_writer_writes_is_read_back() {
    let gguf = Gguf::from_bytes(&valid()).expect("a valid file");
    let meta = gguf.meta();
    assert_eq!(meta.str("general.architecture").expect("set above"), "qwen35");
    assert_eq!(meta.u32("qwen35.block_count").expect("set above"), 4);
    assert_eq!(meta.f32("qwen35.rope.freq_base").expect("set above"), 1e7);
    assert!(!meta.bool("tokenizer.ggml.add_bos_token").expect("set above"));
    assert_eq!(meta.u32s("a.u32s").expect("set above"), [1, 2, 4_000_000_000]);
    assert_eq!(meta.i32s("a.i32s").expect("set above"), [-1, 0, 1]);
    assert_eq!(meta.bools("a.bools").expect("set above"), [true, false]);
    let tokens: Result<Vec<&str>, _> = meta.strings("tokenizer.ggml.tokens").expect("set above").collect();
    assert_eq!(tokens.expect("valid text"), ["a", "", "\u{e9}"]);
    assert_eq!(meta.u32_per_layer("qwen35.block_count", 2).expect("a number"), [4, 4]);
    assert_eq!(meta.opt_u32("absent").expect("absent is fine"), None);

    let a = gguf.require("a.weight", &[3, 2]).expect("written above");
    assert_eq!((a.row(), a.rows(), a.bytes), (3, 2, 24));
    assert_eq!(gguf.data(a), [7; 24]);
    let b = gguf.tensor("b.weight").expect("written above");
    assert_eq!((b.dtype, gguf.data(b)), (DType::Q8_0, &[9u8; 68][..]));
    assert_eq!(&(*gguf.map()).as_ref()[b.offset..b.offset + 3], [9; 3]);
    assert_eq!(gguf.tensors().count(), 2);
}

#[test]
fn copied_keys_are_equal() {
    let gguf = Gguf::from_bytes(&valid()).expect("a valid file");
    let mut writer = GgufWriter::new();
    writer.copy_keys(&gguf, |key| key != "a.bools");
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).expect("a vector takes every write");
    let copy = Gguf::from_bytes(&file).expect("a valid file");
    assert_eq!(copy.meta().keys().len(), gguf.meta().keys().len() - 1);
    assert_eq!(copy.meta().str("general.architecture").expect("copied"), "qwen35");
    assert_eq!(copy.meta().i32s("a.i32s").expect("copied"), [-1, 0, 1]);
    assert_eq!(copy.meta().strings("tokenizer.ggml.tokens").expect("copied").len(), 3);
}

#[test]
fn a_writer_given_the_wrong_amount_of_data_says_so() {
    let mut writer = GgufWriter::new();
    writer.tensor("a.weight", DType::F32, &[4]).expect("a valid shape");
    let error = writer
        .write(&mut Vec::new(), |_, out| out.write_all(&[0; 12]))
        .expect_err("four bytes are missing")
        .to_string();
    assert_says(&error, &["a.weight", "12", "16"]);
}

#[test]
fn a_missing_key_and_a_wrong_type_are_named() {
    let gguf = Gguf::from_bytes(&valid()).expect("a valid file");
    let meta = gguf.meta();
    let missing = meta.u32("qwen35.embedding_length").expect_err("absent").to_string();
    assert_says(&missing, &["qwen35.embedding_length", "missing"]);
    let wrong = meta.u32("general.architecture").expect_err("a string").to_string();
    assert_says(&wrong, &["general.architecture", "is string", "expected u32"]);
    let wrong = meta.bools("a.i32s").expect_err("numbers").to_string();
    assert_says(&wrong, &["a.i32s", "array of 3 i32", "array of bool"]);
    let range = meta.u32s("a.i32s").expect_err("negative").to_string();
    assert_says(&range, &["a.i32s", "-1", "0 to 4294967295"]);
    let layers = meta.u32_per_layer("a.u32s", 4).expect_err("three").to_string();
    assert_says(&layers, &["a.u32s", "array of 3", "array of 4"]);
    let absent = gguf.require("c.weight", &[1]).expect_err("absent").to_string();
    assert_says(&absent, &["c.weight", "missing"]);
    let shape = gguf.require("a.weight", &[2, 3]).expect_err("transposed").to_string();
    assert_says(&shape, &["a.weight", "[3, 2]", "[2, 3]"]);
}

#[test]
fn every_truncation_of_a_valid_file_is_refused() {
    let file = valid();
    // The last tensor's 68 bytes are padded to 96; only the padding may be missing.
    let needed = file.len() - 28;
    for length in 0..needed {
        assert!(Gguf::from_bytes(&file[..length]).is_err(), "accepted with {length} bytes");
    }
    assert!(Gguf::from_bytes(&file[..needed]).is_ok());
}

#[test]
fn any_single_changed_byte_of_the_header_never_panics() {
    let file = valid();
    for at in 0..file.len() - 128 {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] = value;
            if let Ok(gguf) = Gguf::from_bytes(&changed) {
                for tensor in gguf.tensors() {
                    assert_eq!(gguf.data(tensor).len(), tensor.bytes);
                }
                for key in gguf.meta().keys() {
                    let _ = (gguf.meta().u32s(key), gguf.meta().get(key));
                    if let Ok(strings) = gguf.meta().strings(key) {
                        for _ in strings {}
                    }
                }
            }
        }
    }
}

#[test]
fn a_folder_and_an_absent_file_are_named() {
    let folder = Gguf::open(env!("CARGO_MANIFEST_DIR")).expect_err("a folder");
    assert!(matches!(folder, GgufError::NotAFile { .. }), "{folder}");
    let absent = Gguf::open("no-such-model.gguf").expect_err("absent").to_string();
    assert_says(&absent, &["no-such-model.gguf"]);
}
