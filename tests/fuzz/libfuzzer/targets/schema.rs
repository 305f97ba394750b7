#![no_main]

libfuzzer_sys::fuzz_target!(init: tandem_fuzz::schema::hush(), |data: &[u8]| tandem_fuzz::schema::run(data));
