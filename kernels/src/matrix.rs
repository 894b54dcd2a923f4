//! A row-major matrix of f32: hidden states, queries, keys, values, logits.

/// A dense matrix `[rows, cols]`, row-major, f32.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    /// A matrix of zeros, `[rows, cols]`.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// Takes `data`, row-major, as `[rows, cols]`.
    ///
    /// # Panics
    /// If `data` does not hold `rows * cols` values.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "a matrix [{rows}, {cols}] of {} values", data.len());
        Self { rows, cols, data }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `row`, `[cols]`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// Row `row`, `[cols]`, to write.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// All values, row-major.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All values, row-major, to write.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The values, row-major.
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }

    /// Makes this `[rows, cols]` with any values, in the memory it has.
    pub(crate) fn reshape(&mut self, rows: usize, cols: usize) -> &mut Self {
        (self.rows, self.cols) = (rows, cols);
        self.data.resize(rows * cols, 0.0);
        self
    }

    /// A new matrix of the rows `indices`, in that order: `[indices.len(), cols]`.
    pub fn select_rows(&self, indices: &[usize]) -> Self {
        let mut data = Vec::with_capacity(indices.len() * self.cols);
        for &index in indices {
            data.extend_from_slice(self.row(index));
        }
        Self { rows: indices.len(), cols: self.cols, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_selected_in_the_order_asked() {
        let matrix = Matrix::from_vec(3, 2, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let picked = matrix.select_rows(&[2, 0, 2]);
        assert_eq!(picked.as_slice(), [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]);
        assert_eq!((picked.rows(), picked.cols()), (3, 2));
        assert_eq!(matrix.select_rows(&[]).rows(), 0);
    }
}
