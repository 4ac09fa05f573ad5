//! Shapes: fully known ([`Shape`]) and as inference sees them ([`PartialShape`]).

use ferroflow_base::{Result, invalid_argument};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// Dimensions of a tensor, outermost first. Up to four without a heap allocation.
///
/// ```
/// use ferroflow_tensor::Shape;
/// let s = Shape::from([2, 3]);
/// assert_eq!((s.rank(), s.num_elements(), s.to_string()), (2, 6, "[2,3]".to_string()));
/// ```
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// Returns the shape of a scalar.
    #[inline]
    pub const fn scalar() -> Self {
        Shape(SmallVec::new_const())
    }

    /// The most dimensions that a tensor has in TensorFlow.
    pub const MAX_RANK: usize = 254;

    /// Returns a shape from untrusted dimensions.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for negative dimensions, more than [`Shape::MAX_RANK`] of them, and
    /// products beyond `i64::MAX`.
    pub fn checked(dims: &[i64]) -> Result<Self> {
        if dims.len() > Self::MAX_RANK {
            return Err(invalid_argument!("Too many dimensions"));
        }
        let mut shape = Shape::scalar();
        let mut product: i64 = 1;
        for &d in dims {
            let Ok(dim) = usize::try_from(d) else {
                return Err(invalid_argument!("Dimension {d} must be >= 0"));
            };
            // Zero must not hide an overflow to its left or right, hence max(1).
            product = product.checked_mul(d.max(1)).ok_or_else(|| {
                invalid_argument!(
                    "Encountered overflow when multiplying {product} with {d}, result: -1"
                )
            })?;
            shape.0.push(dim);
        }
        Ok(shape)
    }

    /// Returns the number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the dimensions, outermost first.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Returns the product of the dimensions; 1 for a scalar.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Returns whether there are no dimensions.
    #[inline]
    pub fn is_scalar(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends an innermost dimension.
    pub fn push(&mut self, dim: usize) {
        self.0.push(dim);
    }

    /// Returns row-major strides in elements.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides = SmallVec::from_elem(1, self.rank());
        for i in (0..self.rank().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.0[i + 1];
        }
        strides
    }

    /// Returns the dimensions as signed numbers.
    pub fn to_i64(&self) -> SmallVec<[i64; 4]> {
        self.0.iter().map(|&d| d as i64).collect()
    }
}

impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Self {
        Shape(SmallVec::from_slice(&self.0))
    }
}

impl Deref for Shape {
    type Target = [usize];
    #[inline]
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Shape(iter.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A shape with possibly unknown dimensions or an unknown rank.
///
/// ```
/// use ferroflow_tensor::PartialShape;
/// let a = PartialShape::of([None, Some(3)]);
/// assert_eq!(a.to_string(), "[?,3]");
/// assert!(a.is_compatible_with(&PartialShape::of([Some(2), None])));
/// assert_eq!(PartialShape::unknown().to_string(), "<unknown>");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct PartialShape {
    /// Whether the rank is known.
    is_known: bool,
    /// Empty if it is not. No `Option` of dimensions: the compiler reads their number before it looks
    /// whether there is one, and valgrind reports that.
    dims: SmallVec<[Option<usize>; 4]>,
}

impl PartialShape {
    fn known(dims: SmallVec<[Option<usize>; 4]>) -> Self {
        PartialShape {
            is_known: true,
            dims,
        }
    }

    /// Returns a shape of unknown rank.
    pub fn unknown() -> Self {
        PartialShape::default()
    }

    /// Returns a known rank with unknown dimensions.
    pub fn of_rank(rank: usize) -> Self {
        PartialShape::known(SmallVec::from_elem(None, rank))
    }

    /// Returns a known rank with these dimensions.
    pub fn of(dims: impl IntoIterator<Item = Option<usize>>) -> Self {
        PartialShape::known(dims.into_iter().collect())
    }

    /// Returns the scalar shape.
    pub fn scalar() -> Self {
        PartialShape::known(SmallVec::new())
    }

    /// Converts from TensorFlow's notation: −1 is an unknown dimension, `None` an unknown rank.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for dimensions below −1.
    pub fn from_tf(dims: Option<&[i64]>) -> Result<Self> {
        let Some(dims) = dims else {
            return Ok(Self::unknown());
        };
        let mut out = SmallVec::new();
        for &d in dims {
            out.push(match d {
                -1 => None,
                d if d >= 0 => Some(d as usize),
                d => {
                    return Err(invalid_argument!(
                        "dimension {d} is neither >= 0 nor -1 (unknown)"
                    ));
                }
            });
        }
        Ok(PartialShape::known(out))
    }

    /// Returns the known rank.
    pub fn rank(&self) -> Option<usize> {
        self.is_known.then_some(self.dims.len())
    }

    /// Returns the dimensions when the rank is known.
    pub fn dims(&self) -> Option<&[Option<usize>]> {
        self.is_known.then_some(&self.dims)
    }

    /// Returns dimension `i`, if known; a negative `i` counts from the end.
    pub fn dim(&self, i: isize) -> Option<usize> {
        let dims = self.dims()?;
        let i = if i < 0 { i + dims.len() as isize } else { i };
        *dims.get(usize::try_from(i).ok()?)?
    }

    /// Returns the shape when everything is known.
    pub fn to_full(&self) -> Option<Shape> {
        self.dims()?
            .iter()
            .copied()
            .collect::<Option<SmallVec<[usize; 4]>>>()
            .map(Shape)
    }

    /// Returns the element count when everything is known.
    pub fn num_elements(&self) -> Option<usize> {
        self.dims()?
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul((*d)?))
    }

    /// Returns whether some full shape satisfies both.
    pub fn is_compatible_with(&self, other: &PartialShape) -> bool {
        self.merge(other).is_some()
    }

    /// Returns whether a tensor of shape `shape` fits.
    pub fn matches(&self, shape: &Shape) -> bool {
        match self.dims() {
            None => true,
            Some(dims) => {
                dims.len() == shape.rank()
                    && dims
                        .iter()
                        .zip(shape.iter())
                        .all(|(d, s)| d.is_none_or(|d| d == *s))
            }
        }
    }

    /// Returns the shape that combines what is known of both; `None` if they contradict.
    pub fn merge(&self, other: &PartialShape) -> Option<PartialShape> {
        let (Some(a), Some(b)) = (self.dims(), other.dims()) else {
            return Some(if !self.is_known {
                other.clone()
            } else {
                self.clone()
            });
        };
        if a.len() != b.len() {
            return None;
        }
        let mut out = SmallVec::new();
        for (x, y) in a.iter().zip(b) {
            out.push(match (x, y) {
                (Some(x), Some(y)) if x != y => return None,
                (Some(x), _) => Some(*x),
                (None, y) => *y,
            });
        }
        Some(PartialShape::known(out))
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> Self {
        PartialShape::of(shape.iter().map(|&d| Some(d)))
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = self.dims() else {
            return f.write_str("<unknown>");
        };
        f.write_str("[")?;
        for (i, d) in dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match d {
                Some(d) => write!(f, "{d}")?,
                None => f.write_str("?")?,
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
