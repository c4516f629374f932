//! See `hostloop_fuzz::rpc`.
#![no_main]
#![allow(unsafe_code, reason = "how libFuzzer, which is C++, calls what the macros make")]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| hostloop_fuzz::rpc::run(input));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    hostloop_fuzz::mutate::list(data, size, max_size, seed, libfuzzer_sys::fuzzer_mutate)
});
