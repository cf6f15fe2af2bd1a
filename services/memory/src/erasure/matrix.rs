//! Matrices of coefficients: the parity rows of a code, and their inverses for decoding.

use super::field::{inverse, product};

/// Rows of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matrix {
    columns: usize,
    elements: Vec<u8>,
}

impl Matrix {
    pub(super) fn new(columns: usize, elements: Vec<u8>) -> Self {
        assert!(elements.len().is_multiple_of(columns), "rows are whole");
        Self { columns, elements }
    }

    /// A Cauchy matrix, scaled so that its first row and its first column are ones.
    ///
    /// Its element is `1 / (x + y)` with all x of the rows and y of the columns distinct, so every
    /// square part has an inverse. To scale a row or a column keeps that. The row of ones makes the
    /// first parity unit a plain exclusive or.
    pub(super) fn cauchy(rows: usize, columns: usize) -> Self {
        assert!(rows + columns <= 256, "as many distinct elements");
        let element = |row: usize, column: usize| inverse((columns + row) as u8 ^ column as u8);
        let scaled = |row, column| {
            let by_column = product(element(row, column), inverse(element(0, column)));
            let first = product(element(row, 0), inverse(element(0, 0)));
            product(by_column, inverse(first))
        };
        let elements =
            (0..rows).flat_map(|row| (0..columns).map(move |column| scaled(row, column)));
        Self::new(columns, elements.collect())
    }

    fn identity(size: usize) -> Self {
        let elements = (0..size * size).map(|at| u8::from(at / size == at % size));
        Self::new(size, elements.collect())
    }

    pub(super) fn rows(&self) -> usize {
        self.elements.len() / self.columns
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn row(&self, row: usize) -> &[u8] {
        &self.elements[row * self.columns..][..self.columns]
    }

    fn at(&self, row: usize, column: usize) -> u8 {
        self.row(row)[column]
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.rows(), "the shapes match");
        let element = |row: usize, column: usize| {
            let terms = self.row(row).iter().enumerate();
            terms.fold(0, |sum, (at, &a)| sum ^ product(a, other.at(at, column)))
        };
        let rows = 0..self.rows();
        let elements =
            rows.flat_map(|row| (0..other.columns).map(move |column| element(row, column)));
        Self::new(other.columns, elements.collect())
    }

    /// Gauss and Jordan's elimination. Rows of data units that are present cost next to nothing.
    ///
    /// # Panics
    /// If there is no inverse, which no choice of distinct units of a code leads to.
    pub(super) fn inverse(mut self) -> Self {
        let size = self.columns;
        let mut result = Self::identity(size);
        for column in 0..size {
            let pivot = (column..size)
                .find(|&row| self.at(row, column) != 0)
                .expect("the rows are independent");
            let scale = inverse(self.at(pivot, column));
            for matrix in [&mut self, &mut result] {
                matrix.swap(column, pivot);
                matrix.scale(column, scale);
            }
            for row in (0..size).filter(|&row| row != column) {
                let factor = self.at(row, column);
                if factor != 0 {
                    self.add_multiple(row, column, factor);
                    result.add_multiple(row, column, factor);
                }
            }
        }
        result
    }

    fn swap(&mut self, a: usize, b: usize) {
        for column in 0..self.columns {
            self.elements
                .swap(a * self.columns + column, b * self.columns + column);
        }
    }

    fn scale(&mut self, row: usize, factor: u8) {
        for element in &mut self.elements[row * self.columns..][..self.columns] {
            *element = product(*element, factor);
        }
    }

    /// Adds `factor` times the row `from` to the row `to`.
    fn add_multiple(&mut self, to: usize, from: usize, factor: u8) {
        for column in 0..self.columns {
            let term = product(self.at(from, column), factor);
            self.elements[to * self.columns + column] ^= term;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Matrix;

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        let matrix = Matrix::new(3, vec![0, 2, 3, 4, 0, 6, 7, 8, 10]);
        let inverse = matrix.clone().inverse();
        assert_eq!(matrix.times(&inverse), Matrix::identity(3));
        assert_eq!(inverse.times(&matrix), Matrix::identity(3));
    }

    #[test]
    #[should_panic = "the rows are independent"]
    fn a_matrix_of_equal_rows_has_no_inverse() {
        let _ = Matrix::new(2, vec![3, 4, 3, 4]).inverse();
    }

    /// Stored parity units are decoded with these coefficients by every later version.
    #[test]
    fn the_coefficients_of_the_code_of_ten_and_two_stay_as_they_are() {
        let matrix = Matrix::cauchy(2, 10);
        assert_eq!(matrix.row(0), [1; 10]);
        assert_eq!(matrix.row(1), [1, 147, 138, 73, 93, 161, 103, 58, 99, 178]);
    }
}
