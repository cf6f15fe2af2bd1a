//! The kernels for x86-64: shuffles of AVX2, and the affine instruction of GFNI.
//!
//! Each type is a proof that this processor has the instructions of its name: only its `detect`
//! makes a value. Loads and stores take arrays of the register's size, so the compiler checks their
//! bounds. They need no alignment.

// Two reasons. A call of a function with target features is sound where the processor has them: its
// caller holds the proof. A load or store of a register is sound for a reference to as many bytes.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, __m512i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::{Coefficient, Line};

/// This processor has AVX2.
#[derive(Debug, Clone, Copy)]
pub(in crate::erasure) struct Avx2(());

/// This processor has GFNI and AVX2.
#[derive(Debug, Clone, Copy)]
pub(in crate::erasure) struct Gfni256(());

/// This processor has GFNI and the foundation of AVX-512.
#[derive(Debug, Clone, Copy)]
pub(in crate::erasure) struct Gfni512(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub(super) fn sum<const OUTPUTS: usize>(
        self,
        coefficients: &[[Coefficient; OUTPUTS]],
        sources: &[&[Line]],
        outputs: &mut [&mut [Line]; OUTPUTS],
    ) {
        let Self(()) = self;
        // SAFETY: the processor has AVX2: `self` exists.
        unsafe { avx2(coefficients, sources, outputs) }
    }
}

impl Gfni256 {
    pub(super) fn detect() -> Option<Self> {
        let is_here = is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2");
        is_here.then_some(Self(()))
    }

    pub(super) fn sum<const OUTPUTS: usize>(
        self,
        coefficients: &[[Coefficient; OUTPUTS]],
        sources: &[&[Line]],
        outputs: &mut [&mut [Line]; OUTPUTS],
    ) {
        let Self(()) = self;
        // SAFETY: the processor has GFNI and AVX2: `self` exists.
        unsafe { gfni_256(coefficients, sources, outputs) }
    }
}

impl Gfni512 {
    pub(super) fn detect() -> Option<Self> {
        let is_here = is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx512f");
        is_here.then_some(Self(()))
    }

    pub(super) fn sum<const OUTPUTS: usize>(
        self,
        coefficients: &[[Coefficient; OUTPUTS]],
        sources: &[&[Line]],
        outputs: &mut [&mut [Line]; OUTPUTS],
    ) {
        let Self(()) = self;
        // SAFETY: the processor has GFNI and AVX-512F: `self` exists.
        unsafe { gfni_512(coefficients, sources, outputs) }
    }
}

/// Two registers at a time, so that each table is loaded once for both.
#[target_feature(enable = "avx2")]
fn avx2<const OUTPUTS: usize>(
    coefficients: &[[Coefficient; OUTPUTS]],
    sources: &[&[Line]],
    outputs: &mut [&mut [Line]; OUTPUTS],
) {
    let half_byte = _mm256_set1_epi8(15);
    for at in 0..outputs[0].len() {
        for pair in 0..2 {
            let mut sums = [[_mm256_setzero_si256(); 2]; OUTPUTS];
            for (source, factors) in sources.iter().zip(coefficients) {
                let line = &source[at];
                let bytes = [load_256(line, 2 * pair), load_256(line, 2 * pair + 1)];
                let low = bytes.map(|bytes| _mm256_and_si256(bytes, half_byte));
                let high =
                    bytes.map(|bytes| _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), half_byte));
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    let (lows, highs) = (twice(&factor.low), twice(&factor.high));
                    for register in 0..2 {
                        let term = _mm256_xor_si256(
                            _mm256_shuffle_epi8(lows, low[register]),
                            _mm256_shuffle_epi8(highs, high[register]),
                        );
                        sum[register] = _mm256_xor_si256(sum[register], term);
                    }
                }
            }
            for (sum, output) in sums.iter().zip(outputs.iter_mut()) {
                store_256(&mut output[at], 2 * pair, sum[0]);
                store_256(&mut output[at], 2 * pair + 1, sum[1]);
            }
        }
    }
}

#[target_feature(enable = "avx2,gfni")]
fn gfni_256<const OUTPUTS: usize>(
    coefficients: &[[Coefficient; OUTPUTS]],
    sources: &[&[Line]],
    outputs: &mut [&mut [Line]; OUTPUTS],
) {
    for at in 0..outputs[0].len() {
        for pair in 0..2 {
            let mut sums = [[_mm256_setzero_si256(); 2]; OUTPUTS];
            for (source, factors) in sources.iter().zip(coefficients) {
                let line = &source[at];
                let bytes = [load_256(line, 2 * pair), load_256(line, 2 * pair + 1)];
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    let factor = _mm256_set1_epi64x(factor.affine.cast_signed());
                    for register in 0..2 {
                        let term = _mm256_gf2p8affine_epi64_epi8::<0>(bytes[register], factor);
                        sum[register] = _mm256_xor_si256(sum[register], term);
                    }
                }
            }
            for (sum, output) in sums.iter().zip(outputs.iter_mut()) {
                store_256(&mut output[at], 2 * pair, sum[0]);
                store_256(&mut output[at], 2 * pair + 1, sum[1]);
            }
        }
    }
}

#[target_feature(enable = "avx512f,gfni")]
fn gfni_512<const OUTPUTS: usize>(
    coefficients: &[[Coefficient; OUTPUTS]],
    sources: &[&[Line]],
    outputs: &mut [&mut [Line]; OUTPUTS],
) {
    for at in 0..outputs[0].len() {
        let mut sums = [[_mm512_setzero_si512(); 2]; OUTPUTS];
        for (source, factors) in sources.iter().zip(coefficients) {
            let bytes = [load_512(&source[at], 0), load_512(&source[at], 1)];
            for (sum, factor) in sums.iter_mut().zip(factors) {
                let factor = _mm512_set1_epi64(factor.affine.cast_signed());
                for register in 0..2 {
                    let term = _mm512_gf2p8affine_epi64_epi8::<0>(bytes[register], factor);
                    sum[register] = _mm512_xor_si512(sum[register], term);
                }
            }
        }
        for (sum, output) in sums.iter().zip(outputs.iter_mut()) {
            store_512(&mut output[at], 0, sum[0]);
            store_512(&mut output[at], 1, sum[1]);
        }
    }
}

/// A table of 16 bytes in each half of a register: a shuffle looks within halves.
#[target_feature(enable = "avx2")]
#[inline]
fn twice(table: &[u8; 16]) -> __m256i {
    // SAFETY: the reference is to the 16 bytes of the load.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// The register with this index of a line.
#[target_feature(enable = "avx2")]
#[inline]
fn load_256(line: &Line, index: usize) -> __m256i {
    let bytes: &[u8; 32] = &line.as_chunks().0[index];
    // SAFETY: the reference is to the 32 bytes of the load.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_256(line: &mut Line, index: usize, value: __m256i) {
    let bytes: &mut [u8; 32] = &mut line.as_chunks_mut().0[index];
    // SAFETY: the reference is to the 32 bytes of the store, and exclusive.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_512(line: &Line, index: usize) -> __m512i {
    let bytes: &[u8; 64] = &line.as_chunks().0[index];
    // SAFETY: the reference is to the 64 bytes of the load.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store_512(line: &mut Line, index: usize, value: __m512i) {
    let bytes: &mut [u8; 64] = &mut line.as_chunks_mut().0[index];
    // SAFETY: the reference is to the 64 bytes of the store, and exclusive.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) }
}
