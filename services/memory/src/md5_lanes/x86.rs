//! The steps of MD5 on eight lanes of AVX2, or sixteen of AVX-512.
//!
//! Each type is a proof that this processor has the instructions of its name: only its `detect`
//! makes a value. Loads and stores take arrays of the register's size. They need no alignment.

// Two reasons. A call of a function with target features is sound where the processor has them: its
// caller holds the proof. A load or store of a register is sound for a reference to as many bytes.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_and_si256, _mm256_loadu_si256, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256, _mm512_add_epi32, _mm512_loadu_si512,
    _mm512_rol_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4, _mm512_storeu_si512,
    _mm512_ternarylogic_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

use super::{Block, State, rounds::rounds};

/// This processor has AVX2.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

/// This processor has the foundation of AVX-512.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx2 {
    pub(super) const LANES: usize = 8;

    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// Advances each state by as many blocks of its own: all have the same number.
    pub(super) fn advance(self, states: &mut [State; 8], blocks: &[&[Block]; 8]) {
        let Self(()) = self;
        // SAFETY: the processor has AVX2: `self` exists.
        unsafe { avx2(states, blocks) }
    }
}

impl Avx512 {
    pub(super) const LANES: usize = 16;

    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    /// Advances each state by as many blocks of its own: all have the same number.
    pub(super) fn advance(self, states: &mut [State; 16], blocks: &[&[Block]; 16]) {
        let Self(()) = self;
        // SAFETY: the processor has AVX-512F: `self` exists.
        unsafe { avx512(states, blocks) }
    }
}

/// Writes the two kernels, which differ in the width of a register alone.
macro_rules! kernel {
    ($kernel:ident, $features:literal, $lanes:literal, $load:ident, $store:ident, $transposed:ident, [$($operation:tt)*]) => {
        #[target_feature(enable = $features)]
        fn $kernel(states: &mut [State; $lanes], blocks: &[&[Block]; $lanes]) {
            let mut sums = [$load(&[0; 4 * $lanes]); 4];
            for (word, sum) in sums.iter_mut().enumerate() {
                let mut bytes = [0; 4 * $lanes];
                for (bytes, state) in bytes.as_chunks_mut().0.iter_mut().zip(&*states) {
                    *bytes = state[word].to_le_bytes();
                }
                *sum = $load(&bytes);
            }
            for at in 0..blocks[0].len() {
                let words = $transposed(blocks, at);
                sums = rounds!(sums, words, $($operation)*);
            }
            for (word, sum) in sums.into_iter().enumerate() {
                let bytes = $store(sum);
                for (bytes, state) in bytes.as_chunks().0.iter().zip(&mut *states) {
                    state[word] = u32::from_le_bytes(*bytes);
                }
            }
        }
    };
}

kernel!(
    avx2,
    "avx2",
    8,
    load_256,
    store_256,
    transposed_256,
    [
        add_256,
        constant_256,
        rotate_256,
        [f_256, g_256, h_256, i_256]
    ]
);
kernel!(
    avx512,
    "avx512f",
    16,
    load_512,
    store_512,
    transposed_512,
    [
        add_512,
        constant_512,
        rotate_512,
        [f_512, g_512, h_512, i_512]
    ]
);

/// The words of a block of each lane: a register has one word of all lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed_256(blocks: &[&[Block]; 8], at: usize) -> [__m256i; 16] {
    let mut words = [constant_256(0); 16];
    for half in 0..2 {
        let mut rows = [constant_256(0); 8];
        for (row, blocks) in rows.iter_mut().zip(blocks) {
            *row = load_256(&blocks[at].as_chunks().0[half]);
        }
        let mut pairs = rows;
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = pairs;
        for i in [0, 4] {
            fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
            fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
            fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
        }
        for i in 0..4 {
            words[8 * half + i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[4 + i]);
            words[8 * half + 4 + i] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[4 + i]);
        }
    }
    words
}

/// As [`transposed_256`], in two more steps: a register has four parts of 128 bits.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed_512(blocks: &[&[Block]; 16], at: usize) -> [__m512i; 16] {
    let mut rows = [constant_512(0); 16];
    for (row, blocks) in rows.iter_mut().zip(blocks) {
        *row = load_512(&blocks[at]);
    }
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut fours = pairs;
    for i in [0, 4, 8, 12] {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    let mut words = fours;
    for i in 0..4 {
        // Parts 0 and 2, and then 1 and 3, of the eight first and the eight last lanes.
        let even = [0, 8].map(|j| _mm512_shuffle_i32x4::<0x88>(fours[j + i], fours[j + 4 + i]));
        let odd = [0, 8].map(|j| _mm512_shuffle_i32x4::<0xdd>(fours[j + i], fours[j + 4 + i]));
        words[i] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        words[4 + i] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        words[8 + i] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        words[12 + i] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    words
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to the 32 bytes of the load.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_256(value: __m256i) -> [u8; 32] {
    let mut bytes = [0; 32];
    // SAFETY: the array has the 32 bytes of the store.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) };
    bytes
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to the 64 bytes of the load.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store_512(value: __m512i) -> [u8; 64] {
    let mut bytes = [0; 64];
    // SAFETY: the array has the 64 bytes of the store.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) };
    bytes
}

/// Small functions on registers, each as its body.
macro_rules! operations {
    ($features:literal, $register:ty: $($name:ident($($argument:ident),*) $body:block)*) => {
        $(
            #[target_feature(enable = $features)]
            #[inline]
            fn $name($($argument: $register),*) -> $register $body
        )*
    };
}

operations! { "avx2", __m256i:
    add_256(a, b) { _mm256_add_epi32(a, b) }
    f_256(b, c, d) { _mm256_xor_si256(_mm256_and_si256(_mm256_xor_si256(c, d), b), d) }
    g_256(b, c, d) { f_256(d, b, c) }
    h_256(b, c, d) { _mm256_xor_si256(_mm256_xor_si256(b, c), d) }
    i_256(b, c, d) {
        let not_d = _mm256_xor_si256(d, constant_256(u32::MAX));
        _mm256_xor_si256(c, _mm256_or_si256(b, not_d))
    }
}

operations! { "avx512f", __m512i:
    add_512(a, b) { _mm512_add_epi32(a, b) }
    // The byte is the function's table: its bit 4b + 2c + d is the result.
    f_512(b, c, d) { _mm512_ternarylogic_epi32::<0xca>(b, c, d) }
    g_512(b, c, d) { f_512(d, b, c) }
    h_512(b, c, d) { _mm512_ternarylogic_epi32::<0x96>(b, c, d) }
    i_512(b, c, d) { _mm512_ternarylogic_epi32::<0x39>(b, c, d) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn constant_256(value: u32) -> __m256i {
    _mm256_set1_epi32(value.cast_signed())
}

#[target_feature(enable = "avx2")]
#[inline]
fn rotate_256<const LEFT: i32, const RIGHT: i32>(a: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_slli_epi32::<LEFT>(a), _mm256_srli_epi32::<RIGHT>(a))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn constant_512(value: u32) -> __m512i {
    _mm512_set1_epi32(value.cast_signed())
}

#[target_feature(enable = "avx512f")]
#[inline]
fn rotate_512<const LEFT: i32, const RIGHT: i32>(a: __m512i) -> __m512i {
    _mm512_rol_epi32::<LEFT>(a)
}
