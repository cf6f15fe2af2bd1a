//! GF(2^8): the arithmetic in which a byte has sums, products and inverses.
//!
//! A sum is an exclusive or. A product is that of two polynomials over GF(2), reduced by
//! x^8 + x^4 + x^3 + x^2 + 1. Storage systems commonly use this polynomial, and x generates all
//! elements but zero. Tables of its powers make a product of two logarithms.

/// The polynomial without x^8.
const REDUCTION: u8 = 0x1d;
/// Elements but zero.
const ORDER: usize = 255;

/// The powers of x. Twice the order, so that a sum of two logarithms needs no division.
const POWERS: [u8; 2 * ORDER] = powers();
/// The logarithm of each element but zero.
const LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 2 * ORDER] {
    let mut powers = [1; 2 * ORDER];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = times_x(powers[exponent - 1]);
        exponent += 1;
    }
    powers
}

const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let mut exponent = 0;
    while exponent < ORDER {
        logarithms[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
}

const fn times_x(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { REDUCTION }
}

pub(super) fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[usize::from(LOGARITHMS[usize::from(a)]) + usize::from(LOGARITHMS[usize::from(b)])]
}

/// The element whose product with `a` is 1.
pub(super) fn inverse(a: u8) -> u8 {
    assert_ne!(a, 0, "zero has no inverse");
    POWERS[ORDER - usize::from(LOGARITHMS[usize::from(a)])]
}

#[cfg(test)]
mod tests {
    use super::{inverse, product, times_x};

    /// The product by its definition: a sum of shifted and reduced copies.
    fn by_definition(a: u8, b: u8) -> u8 {
        let shifted = std::iter::successors(Some(a), |&power| Some(times_x(power)));
        let terms = shifted.take(8).enumerate();
        terms.fold(0, |sum, (bit, power)| {
            sum ^ if b >> bit & 1 == 1 { power } else { 0 }
        })
    }

    #[test]
    fn every_product_is_that_of_the_polynomials() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(product(a, b), by_definition(a, b), "{a} {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        assert!((1..=255).all(|a| product(a, inverse(a)) == 1));
    }
}
