//! A systematic Reed-Solomon code: which bytes restore the units of a stripe that are lost.
//!
//! A stripe of `data` units gets `parity` more. Any `data` of them restore all the others, so a read
//! goes on while instances are gone or slow. The data units are the content itself: a read that
//! finds them all decodes nothing.
//!
//! The bytes at one place of the units are elements of GF(2^8) ([`field`]). Each parity byte is a
//! linear combination of the data bytes with the coefficients of a Cauchy matrix ([`matrix`]). To
//! decode is the same sum with the inverse matrix. One routine does both, by the fastest
//! instructions that this processor has ([`kernel`]). The choice changes no result.
//!
//! Invariants
//! - Each loss of at most `parity` units can be restored: every square part of a Cauchy matrix has
//!   an inverse.
//! - The coefficients never change. Stored parity units are decoded with them.
//!
//! The code does not notice a wrong unit. The checksum of each unit does (promise M4).

mod field;
mod kernel;
mod matrix;
#[cfg(test)]
mod tests;

use self::{
    kernel::{Coefficient, Kernel},
    matrix::Matrix,
};

/// Units with content in a stripe.
pub const DATA_UNITS_MAX: usize = 32;
/// Units in a stripe that are computed from the others.
pub const PARITY_UNITS_MAX: usize = 8;

/// A code of one shape. It is immutable: share it, since it holds its tables.
#[derive(Debug)]
pub struct Code {
    /// A row of `data` coefficients for each parity unit.
    parity_rows: Matrix,
    coefficients: Vec<Coefficient>,
    kernel: Kernel,
}

impl Code {
    /// A code of 1 to [`DATA_UNITS_MAX`] data units and 0 to [`PARITY_UNITS_MAX`] parity units.
    ///
    /// # Panics
    /// If a number is out of its bounds.
    pub fn new(data: usize, parity: usize) -> Self {
        Self::on(Kernel::fastest(), data, parity)
    }

    fn on(kernel: Kernel, data: usize, parity: usize) -> Self {
        assert!(
            (1..=DATA_UNITS_MAX).contains(&data),
            "a stripe has 1 to {DATA_UNITS_MAX} data units, not {data}"
        );
        assert!(
            parity <= PARITY_UNITS_MAX,
            "a stripe has at most {PARITY_UNITS_MAX} parity units, not {parity}"
        );
        let parity_rows = Matrix::cauchy(parity, data);
        Self {
            coefficients: coefficients(&parity_rows),
            parity_rows,
            kernel,
        }
    }

    /// Data units of a stripe. They have the indices from 0.
    pub fn data(&self) -> usize {
        self.parity_rows.columns()
    }

    /// Parity units of a stripe. They have the indices from [`Self::data`].
    pub fn parity(&self) -> usize {
        self.parity_rows.rows()
    }

    /// All units of a stripe.
    pub fn total(&self) -> usize {
        self.data() + self.parity()
    }

    /// The instructions in use, as a name for reports.
    pub fn instructions(&self) -> &'static str {
        self.kernel.name()
    }

    /// Computes the parity units of a stripe. It overwrites all bytes of `parity`.
    ///
    /// # Panics
    /// If the numbers of units are not those of the code, or the units differ in length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.data(), "all data units are needed");
        assert_eq!(parity.len(), self.parity(), "all parity units are computed");
        self.kernel.multiply(&self.coefficients, data, parity);
    }

    /// Computes the `wanted` units from the first [`Self::data`] units that are present. Each unit
    /// goes with its index in the stripe. It overwrites all bytes of `wanted`.
    ///
    /// # Panics
    /// If fewer units are present, an index is out of bounds or occurs twice, or the units differ in
    /// length.
    pub fn reconstruct(&self, present: &[(usize, &[u8])], wanted: &mut [(usize, &mut [u8])]) {
        let present = present
            .get(..self.data())
            .expect("as many units are present as the stripe has data units");
        let mut seen = vec![false; self.total()];
        let indices = present.iter().map(|(index, _)| index);
        for &index in indices.chain(wanted.iter().map(|(index, _)| index)) {
            assert!(index < self.total(), "there is no unit {index}");
            assert!(!seen[index], "unit {index} occurs twice");
            seen[index] = true;
        }
        let rows = |indices: &[usize]| self.rows(indices);
        let held: Vec<usize> = present.iter().map(|(index, _)| *index).collect();
        let lost: Vec<usize> = wanted.iter().map(|(index, _)| *index).collect();
        let decoder = rows(&lost).times(&rows(&held).inverse());
        let sources: Vec<&[u8]> = present.iter().map(|(_, unit)| *unit).collect();
        let mut outputs: Vec<&mut [u8]> = wanted.iter_mut().map(|(_, unit)| &mut **unit).collect();
        self.kernel
            .multiply(&coefficients(&decoder), &sources, &mut outputs);
    }

    /// The coefficients that make the units with these indices of the data units.
    fn rows(&self, indices: &[usize]) -> Matrix {
        let row = |&index: &usize| match index.checked_sub(self.data()) {
            Some(parity) => self.parity_rows.row(parity).to_vec(),
            None => (0..self.data())
                .map(|column| u8::from(column == index))
                .collect(),
        };
        Matrix::new(self.data(), indices.iter().flat_map(row).collect())
    }
}

/// The tables for each element of a matrix, row by row.
fn coefficients(matrix: &Matrix) -> Vec<Coefficient> {
    let rows = (0..matrix.rows()).flat_map(|row| matrix.row(row));
    rows.map(|&value| Coefficient::new(value)).collect()
}
