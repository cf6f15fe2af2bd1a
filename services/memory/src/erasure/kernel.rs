//! Sums of products over whole units, by the fastest instructions that this processor has.
//!
//! Each output is a sum of all sources, each multiplied by one coefficient. A pass reads each source
//! once and computes up to [`OUTPUTS_MAX`] outputs, whose sums stay in registers. Multiplication by
//! a constant is linear over GF(2), which gives two ways to do it for a whole register:
//!
//! - A table lookup for each half of a byte, since the product of a sum is the sum of the products.
//!   One shuffle instruction looks 16 or more bytes up.
//! - The affine instruction of GFNI, which multiplies each byte by a matrix of 8 x 8 bits.
//!
//! All ways give equal results. There are no further blocks: a stripe of the usual shape needs one
//! pass, and for more outputs the second pass finds the stripe in the cache. To take fewer sources at
//! a time was no faster where units lie at multiples of a large power of two.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::field::product;

/// The bytes of a unit that one step handles: the registers are whole, and a rest is padded.
const LINE_BYTES: usize = 128;
type Line = [u8; LINE_BYTES];

/// Outputs of one pass. Their sums and the tables in use fit into 16 registers.
const OUTPUTS_MAX: usize = 4;
/// A constant factor, in each form that a kernel needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coefficient {
    /// The products with each low half of a byte.
    low: [u8; 16],
    /// The products with each high half of a byte.
    high: [u8; 16],
    /// The bit matrix for the affine instruction. Its byte 7 makes bit 0 of the product, and so on.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    affine: u64,
}

impl Coefficient {
    pub(super) fn new(value: u8) -> Self {
        let affine = (0..8).map(|bit| {
            // The bits of the factor whose products have this bit.
            let inputs = (0..8).filter(|input| product(value, 1 << input) >> bit & 1 == 1);
            inputs.fold(0, |row: u64, input| row | 1 << input) << (8 * (7 - bit))
        });
        Self {
            low: std::array::from_fn(|half| product(value, half as u8)),
            high: std::array::from_fn(|half| product(value, (half as u8) << 4)),
            affine: affine.sum(),
        }
    }

    fn times(&self, byte: u8) -> u8 {
        self.low[usize::from(byte & 15)] ^ self.high[usize::from(byte >> 4)]
    }
}

/// The instructions that compute the sums. A variant exists only where the processor has them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kernel {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Gfni256(x86::Gfni256),
    #[cfg(target_arch = "x86_64")]
    Gfni512(x86::Gfni512),
}

impl Kernel {
    /// The fastest instructions of this processor that compute as the scalar code does. Few
    /// processors have all of them, and a wrong parity unit would show only when it is needed.
    pub(super) fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        return [Self::gfni_512(), Self::gfni_256(), Self::avx2()]
            .into_iter()
            .flatten()
            .find(|kernel| kernel.computes_as_scalar())
            .unwrap_or(Self::Scalar);
        #[cfg(not(target_arch = "x86_64"))]
        Self::Scalar
    }

    #[cfg(target_arch = "x86_64")]
    fn computes_as_scalar(self) -> bool {
        let coefficients: Vec<_> = [2, 0x8e, 0x53, 0xff, 1, 0]
            .map(Coefficient::new)
            .into_iter()
            .collect();
        let source = |factor: u8| {
            let bytes = (0..=u8::MAX).map(move |byte| byte.wrapping_mul(factor));
            bytes.chain(0..77).collect::<Vec<_>>()
        };
        let sources = [source(1), source(7)];
        let sources: Vec<_> = sources.iter().map(Vec::as_slice).collect();
        let products = |kernel: Self| {
            let mut outputs = [(); 3].map(|()| vec![0; sources[0].len()]);
            let mut into: Vec<_> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            kernel.multiply(&coefficients, &sources, &mut into);
            outputs
        };
        let is_right = products(self) == products(Self::Scalar);
        if !is_right {
            tracing::warn!(
                instructions = self.name(),
                "the erasure code does not use these instructions: they compute wrongly on this processor. Please report it"
            );
        }
        is_right
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn avx2() -> Option<Self> {
        x86::Avx2::detect().map(Self::Avx2)
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn gfni_256() -> Option<Self> {
        x86::Gfni256::detect().map(Self::Gfni256)
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn gfni_512() -> Option<Self> {
        x86::Gfni512::detect().map(Self::Gfni512)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Gfni256(_) => "GFNI and AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512(_) => "GFNI and AVX-512",
        }
    }

    /// Overwrites each output by its sum. `coefficients` has a row of all sources for each output.
    ///
    /// # Panics
    /// If the units differ in length.
    pub(super) fn multiply(
        self,
        coefficients: &[Coefficient],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) {
        assert_eq!(coefficients.len(), sources.len() * outputs.len());
        let bytes = sources[0].len();
        let sources_match = sources.iter().all(|source| source.len() == bytes);
        let outputs_match = outputs.iter().all(|output| output.len() == bytes);
        assert!(sources_match && outputs_match, "units are of equal length");
        let rows = coefficients.chunks(sources.len() * OUTPUTS_MAX);
        for (rows, outputs) in rows.zip(outputs.chunks_mut(OUTPUTS_MAX)) {
            match outputs.len() {
                1 => self.pass::<1>(rows, sources, outputs),
                2 => self.pass::<2>(rows, sources, outputs),
                3 => self.pass::<3>(rows, sources, outputs),
                _ => self.pass::<OUTPUTS_MAX>(rows, sources, outputs),
            }
        }
    }

    /// Whole lines are read and written in place. The rest goes through one padded line a unit.
    fn pass<const OUTPUTS: usize>(
        self,
        rows: &[Coefficient],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) {
        let coefficients: Vec<[Coefficient; OUTPUTS]> = (0..sources.len())
            .map(|source| std::array::from_fn(|output| rows[output * sources.len() + source]))
            .collect();
        let (lines, rests): (Vec<&[Line]>, Vec<&[u8]>) =
            sources.iter().map(|source| source.as_chunks()).unzip();
        let mut outputs = outputs.iter_mut().map(|output| output.as_chunks_mut());
        let outputs: [(&mut [Line], &mut [u8]); OUTPUTS] =
            std::array::from_fn(|_| outputs.next().expect("as many outputs"));
        let (mut output_lines, output_rests) = unzip(outputs);
        self.sum(&coefficients, &lines, &mut output_lines);
        if rests[0].is_empty() {
            return;
        }
        let padded: Vec<Line> = rests.iter().map(|rest| padded(rest)).collect();
        let padded: Vec<&[Line]> = padded.iter().map(std::slice::from_ref).collect();
        let mut sums = [[0; LINE_BYTES]; OUTPUTS];
        self.sum(
            &coefficients,
            &padded,
            &mut sums.each_mut().map(std::slice::from_mut),
        );
        for (rest, sum) in output_rests.into_iter().zip(&sums) {
            rest.copy_from_slice(&sum[..rest.len()]);
        }
    }

    /// Overwrites the outputs. `coefficients` has those of each source in each output.
    fn sum<const OUTPUTS: usize>(
        self,
        coefficients: &[[Coefficient; OUTPUTS]],
        sources: &[&[Line]],
        outputs: &mut [&mut [Line]; OUTPUTS],
    ) {
        match self {
            Self::Scalar => scalar(coefficients, sources, outputs),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(here) => here.sum(coefficients, sources, outputs),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni256(here) => here.sum(coefficients, sources, outputs),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512(here) => here.sum(coefficients, sources, outputs),
        }
    }
}

fn scalar<const OUTPUTS: usize>(
    coefficients: &[[Coefficient; OUTPUTS]],
    sources: &[&[Line]],
    outputs: &mut [&mut [Line]; OUTPUTS],
) {
    for (index, output) in outputs.iter_mut().enumerate() {
        for at in 0..output.len() {
            let mut sums = [0; LINE_BYTES];
            for (source, factors) in sources.iter().zip(coefficients) {
                for (sum, byte) in sums.iter_mut().zip(&source[at]) {
                    *sum ^= factors[index].times(*byte);
                }
            }
            output[at] = sums;
        }
    }
}

fn padded(rest: &[u8]) -> Line {
    let mut line = [0; LINE_BYTES];
    line[..rest.len()].copy_from_slice(rest);
    line
}

fn unzip<A, B, const N: usize>(pairs: [(A, B); N]) -> ([A; N], Vec<B>) {
    let mut seconds = Vec::with_capacity(N);
    let firsts = pairs.map(|(first, second)| {
        seconds.push(second);
        first
    });
    (firsts, seconds)
}

#[cfg(test)]
mod tests {
    use super::{Coefficient, product};

    /// The affine instruction on one byte, from Intel's description: bit i of the result is the
    /// parity of the matrix's byte 7 - i and the operand.
    fn affine(matrix: u64, byte: u8) -> u8 {
        let bit = |bit: u32| {
            let row = matrix.to_le_bytes()[7 - bit as usize];
            ((row & byte).count_ones() % 2) as u8
        };
        (0..8).fold(0, |result, index| result | bit(index) << index)
    }

    #[test]
    fn both_forms_of_a_coefficient_make_every_product() {
        for value in 0..=255 {
            let coefficient = Coefficient::new(value);
            for byte in 0..=255 {
                let expected = product(value, byte);
                assert_eq!(coefficient.times(byte), expected, "{value} {byte}");
                assert_eq!(affine(coefficient.affine, byte), expected, "{value} {byte}");
            }
        }
    }
}
