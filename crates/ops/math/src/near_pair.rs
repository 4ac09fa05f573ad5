//! Functions of two doubles that vector instructions compute in blocks, of all float types.

use ferroflow_base::Result;
use ferroflow_functors::binary::{BinaryFunctor, Side, binary_kernel, half_binary_kernel};
use ferroflow_functors::field::Promote;
use ferroflow_opdef::{KernelBuild, OpKernel};
use ferroflow_primitives::special_blocks::{Block, LANES};
use ferroflow_tensor::{DType, Element, bf16, f16};

/// A function of blocks of the numbers that are near, and one of any numbers.
#[derive(Clone, Copy)]
pub(crate) struct NearPair {
    pub(crate) double: fn(&Block, &Block) -> Block,
    /// As `double`, if the results are rounded to single precision.
    pub(crate) single: fn(&Block, &Block) -> Block,
    pub(crate) is_near: fn(f64, f64) -> bool,
    pub(crate) far: fn(f64, f64) -> f64,
    /// Numbers that are near, in place of those that are not.
    pub(crate) example: [f64; 2],
}

impl NearPair {
    fn run<T: Element>(&self) -> fn(&Block, &Block) -> Block {
        match T::DTYPE {
            DType::Double => self.double,
            _ => self.single,
        }
    }

    /// Computes up to [`LANES`] results.
    fn block<T: Element + Promote<Wide = f64>>(&self, a: &[T], b: &[T], out: &mut [T]) {
        let (mut x, mut y) = ([self.example[0]; LANES], [self.example[1]; LANES]);
        let pairs = x.iter_mut().zip(&mut y).zip(a.iter().zip(b));
        for ((x, y), (a, b)) in pairs {
            let (a, b) = (a.promote(), b.promote());
            if (self.is_near)(a, b) {
                (*x, *y) = (a, b);
            }
        }
        let found = self.run::<T>()(&x, &y);
        for ((out, found), (a, b)) in out.iter_mut().zip(found).zip(a.iter().zip(b)) {
            let (a, b) = (a.promote(), b.promote());
            *out = T::demote(match (self.is_near)(a, b) {
                true => found,
                false => (self.far)(a, b),
            });
        }
    }
}

impl<T: Element + Promote<Wide = f64>> BinaryFunctor<T, T> for NearPair {
    fn apply(&self, a: T, b: T) -> T {
        let mut out = [a];
        self.block(&[a], &[b], &mut out);
        out[0]
    }

    fn apply_slice(&self, a: Side<T>, b: Side<T>, out: &mut [T]) {
        let part = |side: &Side<T>, at: usize, n: usize, copy: &mut [T; LANES]| match side {
            Side::Slice(x) => copy[..n].copy_from_slice(&x[at..][..n]),
            Side::Scalar(x) => copy[..n].fill(*x),
        };
        let (mut x, mut y) = ([T::default(); LANES], [T::default(); LANES]);
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            let n = out.len();
            part(&a, i * LANES, n, &mut x);
            part(&b, i * LANES, n, &mut y);
            self.block(&x[..n], &y[..n], out);
        }
    }

    fn assign_left(&self, a: &mut [T], b: Side<T>) {
        let copy = a.to_vec();
        self.apply_slice(Side::Slice(&copy), b, a);
    }

    fn assign_right(&self, a: Side<T>, b: &mut [T]) {
        let copy = b.to_vec();
        self.apply_slice(a, Side::Slice(&copy), b);
    }

    fn in_place(&self) -> bool {
        false
    }
}

/// Returns the kernel of a function of float types.
pub(crate) fn kernel(build: &KernelBuild, near: NearPair) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Float => binary_kernel::<f32, f32>(near),
        DType::Double => binary_kernel::<f64, f64>(near),
        DType::Half => half_binary_kernel::<f16>(near),
        DType::Bfloat16 => half_binary_kernel::<bf16>(near),
        dtype => Err(build.unsupported(dtype)),
    }
}
