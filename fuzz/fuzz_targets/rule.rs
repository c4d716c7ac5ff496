#![no_main]

#[path = "../../crates/net/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::rule(bytes));
