//! Windows of a tensor at places that another tensor holds: what XlaGather and XlaScatter share (XLA:
//! `service/shape_inference.cc`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::indices::list;
use ferroflow_tensor::Shape;
use smallvec::SmallVec;

/// The roles of dimensions. `outer` is the tensor of windows: the result of a gather, the updates of a scatter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    /// The dimensions of `outer` that are a window's.
    pub(crate) window_dims: Vec<i64>,
    /// The operand's dimensions that windows do not have.
    pub(crate) dropped_dims: Vec<i64>,
    /// The operand's dimensions that the numbers of an index are for.
    pub(crate) index_map: Vec<i64>,
    /// The dimension of the indices along which the numbers of an index lie.
    pub(crate) index_vector_dim: i64,
    /// The operand's dimensions that run along with dimensions of the indices.
    pub(crate) operand_batch: Vec<i64>,
    /// The dimensions of the indices that they run along with.
    pub(crate) indices_batch: Vec<i64>,
}

#[cold]
fn bad(what: &str, dims: &[i64]) -> Status {
    invalid_argument!("{what}; got: {}.", list(dims))
}

/// Checks that `dims` are different dimensions of `rank`, in ascending order if `ascends`.
fn check_dims(what: &str, dims: &[i64], rank: usize, ascends: bool) -> Result<()> {
    let mut sorted = dims.to_vec();
    sorted.sort_unstable();
    if ascends && sorted != dims {
        return Err(bad(&format!("{what} must be sorted"), dims));
    }
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(bad(&format!("{what} must not repeat"), dims));
    }
    match dims.iter().find(|&&d| d < 0 || d >= rank as i64) {
        Some(dim) => Err(invalid_argument!(
            "Invalid {what}; valid range is [0, {rank}), got: {dim}."
        )),
        None => Ok(()),
    }
}

impl Roles {
    /// Checks the roles for an operand and indices of these shapes, and returns what they say of the shapes.
    pub(crate) fn resolve(&self, op: &str, operand: &Shape, indices: &Shape) -> Result<Resolved> {
        let (rank, vector_dim) = (operand.rank(), self.index_vector_dim);
        let vector_dim = usize::try_from(vector_dim)
            .ok()
            .filter(|&d| d <= indices.rank());
        let Some(vector_dim) = vector_dim else {
            return Err(invalid_argument!(
                "{op} index leaf dimension must be within [0, rank(indices) + 1). rank(indices) is {} and {op} index \
                 leaf dimension is {}.",
                indices.rank(),
                self.index_vector_dim
            ));
        };
        let mut indices_dims = indices.dims().to_vec();
        if vector_dim == indices_dims.len() {
            indices_dims.push(1);
        }
        let outer_rank = self.window_dims.len() + indices_dims.len() - 1;
        check_dims("window dimensions", &self.window_dims, outer_rank, true)?;
        check_dims("dropped dimensions", &self.dropped_dims, rank, true)?;
        check_dims(
            "operand batching dimensions",
            &self.operand_batch,
            rank,
            true,
        )?;
        check_dims("index map", &self.index_map, rank, false)?;
        check_dims(
            "indices batching dimensions",
            &self.indices_batch,
            indices_dims.len(),
            false,
        )?;
        if self.index_map.len() != indices_dims[vector_dim] {
            return Err(invalid_argument!(
                "{op} op has {} elements in the index map and the bound of dimension index_vector_dim={vector_dim} of \
                 the indices is {}. These two numbers must be equal.",
                self.index_map.len(),
                indices_dims[vector_dim]
            ));
        }
        if self.operand_batch.len() != self.indices_batch.len() {
            return Err(invalid_argument!(
                "the batching dimensions of operand and indices in {op} op must be of the same size; got: {} and {}.",
                self.operand_batch.len(),
                self.indices_batch.len()
            ));
        }
        let overlaps = |dim: &i64| self.dropped_dims.contains(dim) || self.index_map.contains(dim);
        let bad_batch = self.operand_batch.iter().any(overlaps)
            || self.indices_batch.contains(&(vector_dim as i64));
        let parts = self.window_dims.len() + self.dropped_dims.len() + self.operand_batch.len();
        if bad_batch || parts != rank {
            return Err(invalid_argument!(
                "{op} op has window of size {parts}; doesn't match operand of rank {rank}."
            ));
        }
        self.sizes_agree(op, operand, &indices_dims)?;
        Ok(self.resolved(rank, outer_rank, vector_dim, indices_dims))
    }

    fn sizes_agree(&self, op: &str, operand: &Shape, indices: &[usize]) -> Result<()> {
        for (&o, &i) in self.operand_batch.iter().zip(&self.indices_batch) {
            let (x, y) = (operand[o as usize], indices[i as usize]);
            if x != y {
                return Err(invalid_argument!(
                    "operand batching dimension {o} of {op} op has size {x}, but dimension {i} of the indices {y}"
                ));
            }
        }
        Ok(())
    }

    fn resolved(
        &self,
        rank: usize,
        outer_rank: usize,
        vector_dim: usize,
        indices: Vec<usize>,
    ) -> Resolved {
        let positions = |dims: &[i64]| -> Vec<usize> { dims.iter().map(|&d| d as usize).collect() };
        let is_in = |dims: &[i64], d: usize| dims.contains(&(d as i64));
        let kept = |&d: &usize| !is_in(&self.dropped_dims, d) && !is_in(&self.operand_batch, d);
        let strides = Shape::from(&indices[..]).strides();
        let batch_in = (0..indices.len()).filter(|&d| d != vector_dim);
        let batch = batch_in.clone().map(|d| Batch {
            size: indices[d],
            stride: strides[d],
            operand: self
                .indices_batch
                .iter()
                .position(|&b| b == d as i64)
                .map(|at| self.operand_batch[at] as usize),
        });
        Resolved {
            window_outer: positions(&self.window_dims),
            window_operand: (0..rank).filter(kept).collect(),
            batch_outer: (0..outer_rank)
                .filter(|&d| !is_in(&self.window_dims, d))
                .collect(),
            batch: batch.collect(),
            index_map: positions(&self.index_map),
            vector_stride: strides[vector_dim],
        }
    }
}

/// A dimension of the indices that is not that of an index' numbers.
#[derive(Clone, Debug)]
struct Batch {
    size: usize,
    stride: usize,
    /// The operand's dimension that runs along.
    operand: Option<usize>,
}

/// Roles of dimensions that fit the shapes of an operand and indices.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The windows' dimensions in `outer`, and in the operand.
    pub(crate) window_outer: Vec<usize>,
    pub(crate) window_operand: Vec<usize>,
    /// The dimensions of `outer` that are not the windows'.
    batch_outer: Vec<usize>,
    batch: Vec<Batch>,
    index_map: Vec<usize>,
    vector_stride: usize,
}

impl Resolved {
    /// Returns the shape of the tensor of windows, whose sizes in the operand are `sizes`.
    pub(crate) fn outer_shape(&self, sizes: &[usize]) -> Result<Shape> {
        let mut dims = vec![0i64; self.window_outer.len() + self.batch.len()];
        for (&outer, &operand) in self.window_outer.iter().zip(&self.window_operand) {
            dims[outer] = sizes[operand] as i64;
        }
        for (&outer, batch) in self.batch_outer.iter().zip(&self.batch) {
            dims[outer] = batch.size as i64;
        }
        Shape::checked(&dims)
    }

    /// Returns the number of windows.
    pub(crate) fn n_windows(&self) -> usize {
        self.batch.iter().map(|b| b.size).product()
    }

    /// Returns whether the windows are rows of `outer`, one after another.
    pub(crate) fn are_rows(&self) -> bool {
        self.batch_outer
            .iter()
            .enumerate()
            .all(|(i, &outer)| i == outer)
    }

    /// Returns how the elements of a window lie.
    pub(crate) fn runs(&self, sizes: &[usize], operand: &[usize], outer: &[usize]) -> Runs {
        let dims = self.window_operand.iter().zip(&self.window_outer);
        let dims = dims.map(|(&d, &o)| (sizes[d], operand[d], outer[o]));
        let mut dims: Vec<_> = dims.filter(|(size, ..)| *size != 1).collect();
        let mut len = 1;
        while let Some(&(size, x, y)) = dims.last()
            && (x, y) == (len, len)
        {
            len *= size;
            dims.pop();
        }
        let mut starts = vec![(0, 0)];
        for (size, x, y) in dims {
            let before = std::mem::take(&mut starts);
            starts.reserve(before.len() * size);
            for (at, to) in before {
                starts.extend((0..size).map(|i| (at + i * x, to + i * y)));
            }
        }
        Runs { len, starts }
    }
}

/// Where windows begin.
pub(crate) struct Starts<'a> {
    indices: &'a [i64],
    vector_stride: usize,
    /// The dimensions of windows: size, and the distances in the indices, outside and in the operand.
    batch: SmallVec<[[usize; 4]; 4]>,
    /// The numbers of an index: how large each may be, and the distance in the operand.
    numbers: SmallVec<[(i64, usize); 4]>,
}

impl<'a> Starts<'a> {
    /// Returns the starts of windows of `sizes` in an operand of these dimensions.
    pub(crate) fn new(
        resolved: &Resolved,
        indices: &'a [i64],
        outer_strides: &[usize],
        operand: &[usize],
        sizes: &[usize],
    ) -> Starts<'a> {
        let strides = Shape::from(operand).strides();
        let batch = resolved.batch.iter().zip(&resolved.batch_outer);
        let batch = batch.map(|(b, &outer)| {
            let along = b.operand.map_or(0, |d| strides[d]);
            [b.size, b.stride, outer_strides[outer], along]
        });
        let numbers = resolved.index_map.iter();
        Starts {
            indices,
            vector_stride: resolved.vector_stride,
            batch: batch.collect(),
            numbers: numbers
                .map(|&d| (operand[d] as i64 - sizes[d] as i64, strides[d]))
                .collect(),
        }
    }

    /// Returns where a window's numbers are, its place outside, and what its position adds to its start in the operand.
    #[inline]
    fn locate(&self, window: usize) -> [usize; 3] {
        if let [[_, from, outer, along]] = self.batch[..] {
            return [window * from, window * outer, window * along];
        }
        let (mut rest, mut found) = (window, [0; 3]);
        for [size, distances @ ..] in self.batch.iter().rev() {
            let coord = rest % size;
            rest /= size;
            for (sum, distance) in found.iter_mut().zip(distances) {
                *sum += coord * distance;
            }
        }
        found
    }

    /// Returns a window's place outside and its start in the operand, into which it is moved.
    #[inline]
    pub(crate) fn moved_inside(&self, window: usize) -> (usize, usize) {
        let [from, outer, mut start] = self.locate(window);
        for (i, &(most, stride)) in self.numbers.iter().enumerate() {
            let number = self.indices[from + i * self.vector_stride];
            start += number.clamp(0, most) as usize * stride;
        }
        (outer, start)
    }

    /// Returns a window's place outside and its start in the operand, if it is inside of it.
    #[inline]
    pub(crate) fn inside(&self, window: usize) -> Option<(usize, usize)> {
        let [from, outer, mut start] = self.locate(window);
        for (i, &(most, stride)) in self.numbers.iter().enumerate() {
            let number = self.indices[from + i * self.vector_stride];
            if !(0..=most).contains(&number) {
                return None;
            }
            start += number as usize * stride;
        }
        Some((outer, start))
    }
}

/// The elements of a window as runs that are contiguous both in the operand and outside.
pub(crate) struct Runs {
    pub(crate) len: usize,
    /// Where each run starts, from the start of the window: in the operand, and outside.
    pub(crate) starts: Vec<(usize, usize)>,
}
