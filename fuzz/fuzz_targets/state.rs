//! See `hostloop_fuzz::state`.
#![no_main]
#![allow(unsafe_code, reason = "how libFuzzer, which is C++, calls what the macros make")]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| hostloop_fuzz::state::run(input));
