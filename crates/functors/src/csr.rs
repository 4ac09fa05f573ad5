//! Sparse matrices in compressed rows, as variants hold them (TensorFlow: `core/kernels/sparse/sparse_matrix.h`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, Variant, dispatch};
use std::ops::Range;
use std::sync::Arc;

/// A sparse matrix, or a batch of them, in compressed rows.
#[derive(Clone)]
pub struct Csr {
    /// The sizes: rows and columns, after the batch size if there are three.
    pub shape: Vec<i64>,
    /// Where each matrix of the batch begins in `columns`, and the end of the last one.
    pub batches: Vec<usize>,
    /// For each matrix, where each row begins in its part of `columns`, and the end of the last.
    pub rows: Vec<i32>,
    /// The column of each stored element.
    pub columns: Vec<i32>,
    /// The stored elements.
    pub values: Tensor,
}

/// One matrix of a batch.
#[derive(Clone, Copy)]
pub struct Part<'a, T> {
    /// Where each row begins, and the end of the last one.
    pub rows: &'a [i32],
    /// The column of each element.
    pub columns: &'a [i32],
    /// The elements.
    pub values: &'a [T],
}

impl<'a, T: Copy> Part<'a, T> {
    /// Returns the columns and elements of row `r`.
    pub fn row(self, r: usize) -> impl Iterator<Item = (usize, T)> + 'a {
        let range = bounds(self.rows, r);
        let columns = self.columns.get(range.clone()).unwrap_or_default();
        let values = self.values.get(range).unwrap_or_default();
        columns
            .iter()
            .map(|&c| c as usize)
            .zip(values.iter().copied())
    }
}

fn bounds(rows: &[i32], r: usize) -> Range<usize> {
    let at = |i: usize| rows.get(i).copied().unwrap_or(0) as usize;
    at(r)..at(r + 1)
}

impl Csr {
    /// Returns the matrix that input `i` holds, whose elements have this dtype.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the input holds something else.
    pub fn input<'a>(ctx: &'a KernelCtx, i: usize) -> Result<&'a Csr> {
        let found = match ctx.input(i)?.variants()? {
            [Variant(Some(value))] => value.downcast_ref(),
            _ => None,
        };
        found.ok_or_else(|| {
            invalid_argument!(
                "Could not get a CSRSparseMatrix from input {i}: it holds another value"
            )
        })
    }

    /// Returns a scalar that holds the matrix.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the matrix does not fit into memory.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![Variant(Some(Arc::new(self)))])
    }

    /// Returns the matrix of the conjugate elements.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the matrix does not fit into memory.
    pub fn conj(&self) -> Result<Csr> {
        Ok(Csr {
            values: conjugates(&self.values)?,
            ..self.clone()
        })
    }

    /// Returns the number of matrices.
    pub fn batch_size(&self) -> usize {
        self.batches.len().saturating_sub(1)
    }

    /// Returns the numbers of rows and columns.
    pub fn size(&self) -> (usize, usize) {
        match self.shape[..] {
            [.., rows, columns] => (rows as usize, columns as usize),
            _ => (0, 0),
        }
    }

    /// Returns the places of the elements of matrix `b`.
    pub fn elements(&self, b: usize) -> Range<usize> {
        let at = |i: usize| self.batches.get(i).copied().unwrap_or(0);
        at(b)..at(b + 1)
    }

    /// Returns matrix `b`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the elements have another dtype.
    pub fn part<T: Element>(&self, b: usize) -> Result<Part<'_, T>> {
        let (rows, _) = self.size();
        let range = self.elements(b);
        let values = self.values.slice::<T>()?;
        Ok(Part {
            rows: self
                .rows
                .get(b * (rows + 1)..(b + 1) * (rows + 1))
                .unwrap_or_default(),
            columns: self.columns.get(range.clone()).unwrap_or_default(),
            values: values.get(range).unwrap_or_default(),
        })
    }

    /// Assembles a matrix from those of its batch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the matrix does not fit into memory.
    pub fn of_parts<T: Element>(shape: Vec<i64>, parts: Vec<Owned<T>>) -> Result<Csr> {
        let mut batches = vec![0];
        let (mut rows, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for mut part in parts {
            rows.append(&mut part.rows);
            columns.append(&mut part.columns);
            values.append(&mut part.values);
            batches.push(columns.len());
        }
        let values = Tensor::vector(&values)?;
        Ok(Csr {
            shape,
            batches,
            rows,
            columns,
            values,
        })
    }

    /// Refuses a matrix whose elements do not have the op's dtype.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the text that this returns for the two dtypes.
    pub fn check_dtype(&self, wanted: DType, text: fn(DType, DType) -> Status) -> Result<()> {
        match self.values.dtype() == wanted {
            true => Ok(()),
            false => Err(text(wanted, self.values.dtype())),
        }
    }
}

/// One matrix of a batch that is being computed.
pub struct Owned<T> {
    /// See [`Part`].
    pub rows: Vec<i32>,
    /// See [`Part`].
    pub columns: Vec<i32>,
    /// See [`Part`].
    pub values: Vec<T>,
}

impl<T> Owned<T> {
    /// Returns a view of the matrix.
    pub fn part(&self) -> Part<'_, T> {
        Part {
            rows: &self.rows,
            columns: &self.columns,
            values: &self.values,
        }
    }
}

/// Returns the conjugates of elements; real ones are their own.
fn conjugates(values: &Tensor) -> Result<Tensor> {
    dispatch!(values.dtype(), T in [Complex32, Complex64] => {
        let values: Vec<T> = values.slice::<T>()?.iter().map(T::conj).collect();
        Tensor::vector(&values)
    }, else Ok(values.clone()))
}
