use std::iter;

use fastrand::Rng;
use proptest::prelude::*;

use super::{Code, DATA_UNITS_MAX, PARITY_UNITS_MAX, kernel::Kernel};

fn random_bytes(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

/// All units of a stripe with random content.
fn stripe(code: &Code, bytes: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut units: Vec<Vec<u8>> = (0..code.total())
        .map(|_| random_bytes(rng, bytes))
        .collect();
    let (data, parity) = units.split_at_mut(code.data());
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut parity);
    units
}

/// What `code` restores of `units` without the units in `lost`.
fn restored(code: &Code, units: &[Vec<u8>], lost: &[usize]) -> Vec<Vec<u8>> {
    let present: Vec<(usize, &[u8])> = units
        .iter()
        .enumerate()
        .filter(|(index, _)| !lost.contains(index))
        .map(|(index, unit)| (index, unit.as_slice()))
        .collect();
    // Not zeros, so that a unit that is only added to would show.
    let mut found = vec![vec![0xaa; units[0].len()]; lost.len()];
    let mut wanted: Vec<(usize, &mut [u8])> = iter::zip(lost, &mut found)
        .map(|(index, unit)| (*index, unit.as_mut_slice()))
        .collect();
    code.reconstruct(&present, &mut wanted);
    found
}

fn assert_restores(code: &Code, units: &[Vec<u8>], lost: &[usize]) {
    let expected: Vec<&Vec<u8>> = lost.iter().map(|&index| &units[index]).collect();
    let found = restored(code, units, lost);
    assert!(
        found.iter().eq(expected),
        "{} + {}: without {lost:?}",
        code.data(),
        code.parity()
    );
}

#[test]
fn every_loss_of_at_most_the_parity_units_is_restored() {
    for (data, parity) in [(10, 2), (4, 2), (1, 1), (5, 3), (10, 4), (3, 0), (2, 6)] {
        let code = Code::new(data, parity);
        let units = stripe(&code, 7, &mut Rng::with_seed(1));
        let sets = 0..1_u32 << code.total();
        for set in sets.filter(|set| set.count_ones() as usize <= parity) {
            let lost: Vec<usize> = (0..code.total())
                .filter(|index| set >> index & 1 == 1)
                .collect();
            assert_restores(&code, &units, &lost);
        }
    }
}

#[test]
fn the_first_parity_unit_is_the_exclusive_or_of_the_data() {
    let units = stripe(&Code::new(10, 2), 300, &mut Rng::with_seed(2));
    let xor = |at| {
        units[..10]
            .iter()
            .fold(0, |sum, unit: &Vec<u8>| sum ^ unit[at])
    };
    assert!((0..300).all(|at| units[10][at] == xor(at)));
}

#[test]
fn units_of_no_bytes_are_coded_too() {
    let code = Code::new(10, 2);
    let units = stripe(&code, 0, &mut Rng::with_seed(3));
    assert_restores(&code, &units, &[0, 11]);
}

#[test]
fn more_present_units_than_needed_do_no_harm() {
    let code = Code::new(4, 2);
    let units = stripe(&code, 9, &mut Rng::with_seed(4));
    let present = [5, 3, 1, 0, 4].map(|index| (index, units[index].as_slice()));
    let mut found = vec![0; 9];
    code.reconstruct(&present, &mut [(2, &mut found)]);
    assert_eq!(found, units[2]);
}

#[test]
#[should_panic = "as many units are present"]
fn too_few_units_are_refused() {
    let units = [0; 3];
    Code::new(2, 2).reconstruct(&[(0, &units)], &mut [(1, &mut [0; 3])]);
}

#[test]
#[should_panic = "unit 1 occurs twice"]
fn a_unit_that_is_present_twice_is_refused() {
    let unit = [0; 3];
    Code::new(2, 2).reconstruct(&[(1, &unit), (1, &unit)], &mut [(0, &mut [0; 3])]);
}

#[test]
#[should_panic = "units are of equal length"]
fn units_of_different_lengths_are_refused() {
    Code::new(2, 1).encode(&[&[0; 3], &[0; 4]], &mut [&mut [0; 3]]);
}

#[test]
#[should_panic = "a stripe has 1 to 32 data units"]
fn a_code_of_too_many_data_units_is_refused() {
    Code::new(DATA_UNITS_MAX + 1, 2);
}

proptest! {
    #[test]
    fn any_shape_restores_any_loss(
        data in 1..=DATA_UNITS_MAX,
        parity in 0..=PARITY_UNITS_MAX,
        bytes in 0_usize..1200,
        seed: u64,
    ) {
        let code = Code::new(data, parity);
        let mut rng = Rng::with_seed(seed);
        let units = stripe(&code, bytes, &mut rng);
        let mut indices: Vec<usize> = (0..code.total()).collect();
        rng.shuffle(&mut indices);
        assert_restores(&code, &units, &indices[..rng.usize(0..=parity)]);
    }
}

/// Lengths around those of a register, a line and a block of lines.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=260).chain([1000, 4095, 4096, 4097, 8191, 12_345])
}

/// Encodes the same random units, which begin at any address, on both kernels.
fn assert_equals_the_scalar(kernel: Kernel) {
    let mut rng = Rng::with_seed(5);
    for (data, parity) in [(10, 2), (1, 1), (5, 3), (4, 4), (7, 5), (32, 8)] {
        let (code, reference) = (
            Code::on(kernel, data, parity),
            Code::on(Kernel::Scalar, data, parity),
        );
        for bytes in lengths() {
            let mut shifted = |count| -> Vec<(usize, Vec<u8>)> {
                let unit = |_| {
                    let shift = rng.usize(0..=64);
                    (shift, random_bytes(&mut rng, shift + bytes))
                };
                (0..count).map(unit).collect()
            };
            let (content, mut found) = (shifted(data), shifted(parity));
            let content: Vec<&[u8]> = content
                .iter()
                .map(|(shift, unit)| &unit[*shift..])
                .collect();
            let mut expected = vec![vec![0; bytes]; parity];
            let mut outputs: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
            reference.encode(&content, &mut outputs);
            let mut outputs: Vec<&mut [u8]> = found
                .iter_mut()
                .map(|(shift, unit)| &mut unit[*shift..])
                .collect();
            code.encode(&content, &mut outputs);
            for (unit, (found, expected)) in iter::zip(outputs, &expected).enumerate() {
                assert!(
                    found == expected,
                    "{data} + {parity}, {bytes} bytes, unit {unit}"
                );
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_x86_64 {
    use super::{super::kernel::Kernel, assert_equals_the_scalar};

    fn compare(kernel: Option<Kernel>, test: &str, instructions: &str) {
        match kernel {
            Some(kernel) => {
                assert_eq!(kernel.name(), instructions);
                assert_equals_the_scalar(kernel);
            }
            None => eprintln!("skipped: erasure::{test}: this processor lacks {instructions}"),
        }
    }

    #[test]
    fn avx2_equals_the_scalar() {
        compare(Kernel::avx2(), "avx2_equals_the_scalar", "AVX2");
    }

    #[test]
    fn gfni_256_equals_the_scalar() {
        compare(
            Kernel::gfni_256(),
            "gfni_256_equals_the_scalar",
            "GFNI and AVX2",
        );
    }

    #[test]
    fn gfni_512_equals_the_scalar() {
        compare(
            Kernel::gfni_512(),
            "gfni_512_equals_the_scalar",
            "GFNI and AVX-512",
        );
    }
}
