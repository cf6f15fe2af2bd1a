//! Combines the CRCs of two pieces into that of their concatenation.
//!
//! An object in parts can have the CRC of its whole content, though no part knows the others. With
//! initial value and final exclusive-or of all ones, as in all CRCs of S3, the CRC of `a ++ b` is
//! that of `a`, multiplied by `x^(8 * bytes of b)` modulo the polynomial, exclusive-or that of `b`.

/// A reflected polynomial, without its leading term.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Polynomial {
    reflected: u64,
    bits: u32,
}

pub(crate) const CRC32: Polynomial = Polynomial {
    reflected: 0xEDB8_8320,
    bits: 32,
};
pub(crate) const CRC32C: Polynomial = Polynomial {
    reflected: 0x82F6_3B78,
    bits: 32,
};
pub(crate) const CRC64_NVME: Polynomial = Polynomial {
    reflected: 0x9A6C_9329_AC4B_C9B5,
    bits: 64,
};

impl Polynomial {
    /// The CRC of two pieces one after the other; `bytes` is the length of the second.
    pub(crate) fn combine(self, first: u64, second: u64, bytes: u64) -> u64 {
        self.multiply(self.power(u128::from(bytes) * 8), first) ^ second
    }

    /// `x^exponent` modulo this polynomial. The highest bit is the term of degree zero.
    fn power(self, mut exponent: u128) -> u64 {
        let one = 1 << (self.bits - 1);
        let (mut result, mut square) = (one, one >> 1);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = self.multiply(result, square);
            }
            square = self.multiply(square, square);
            exponent >>= 1;
        }
        result
    }

    fn multiply(self, a: u64, mut b: u64) -> u64 {
        let mut product = 0;
        for bit in (0..self.bits).rev() {
            if a >> bit & 1 == 1 {
                product ^= b;
            }
            let carry = b & 1;
            b >>= 1;
            if carry == 1 {
                b ^= self.reflected;
            }
        }
        product
    }
}
