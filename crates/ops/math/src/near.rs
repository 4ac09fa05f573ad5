//! Functions of doubles that vector instructions compute in blocks, of all float types.

use ferroflow_base::Result;
use ferroflow_functors::field::Promote;
use ferroflow_functors::unary::{COSTLY, InPlace, UnaryFunctor, half_unary_kernel, unary_kernel};
use ferroflow_opdef::{KernelBuild, OpKernel};
use ferroflow_tensor::{DType, Element, bf16, f16};

/// Numbers of a block.
const BLOCK: usize = 256;

/// A function that overwrites blocks of the numbers that are near, and one of any number.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    pub(crate) double: fn(&mut [f64]),
    /// As `double`, if the results are rounded to single precision.
    pub(crate) single: fn(&mut [f64]),
    pub(crate) is_near: fn(f64) -> bool,
    pub(crate) far: fn(f64) -> f64,
}

impl Near {
    /// A function whose results are the same for both precisions.
    pub(crate) const fn of(
        run: fn(&mut [f64]),
        is_near: fn(f64) -> bool,
        far: fn(f64) -> f64,
    ) -> Near {
        Near {
            double: run,
            single: run,
            is_near,
            far,
        }
    }

    fn run<T: Element>(&self) -> fn(&mut [f64]) {
        match T::DTYPE {
            DType::Double => self.double,
            _ => self.single,
        }
    }
}

impl<T: Element + Promote<Wide = f64>> UnaryFunctor<T, T> for Near {
    fn apply(&self, x: T) -> T {
        let x = x.promote();
        if !(self.is_near)(x) {
            return T::demote((self.far)(x));
        }
        let mut y = [x];
        self.run::<T>()(&mut y);
        T::demote(y[0])
    }

    fn apply_slice(&self, x: &[T], y: &mut [T]) {
        y.copy_from_slice(x);
        self.overwrite(y);
    }

    fn in_place(&self) -> Option<&dyn InPlace<T>> {
        Some(self)
    }
}

impl<T: Element + Promote<Wide = f64>> InPlace<T> for Near {
    fn overwrite(&self, y: &mut [T]) {
        let run = self.run::<T>();
        let (mut x, mut wide) = ([0.0; BLOCK], [0.0; BLOCK]);
        for y in y.chunks_mut(BLOCK) {
            let (x, wide) = (&mut x[..y.len()], &mut wide[..y.len()]);
            for (x, y) in x.iter_mut().zip(&*y) {
                *x = y.promote();
            }
            wide.copy_from_slice(x);
            run(wide);
            let mut all_near = true;
            for ((y, wide), x) in y.iter_mut().zip(wide).zip(&*x) {
                *y = T::demote(*wide);
                all_near &= (self.is_near)(*x);
            }
            if !all_near {
                for (y, x) in y.iter_mut().zip(x).filter(|(_, x)| !(self.is_near)(**x)) {
                    *y = T::demote((self.far)(*x));
                }
            }
        }
    }
}

/// Returns the kernel of a function of float types.
pub(crate) fn kernel(build: &KernelBuild, near: Near) -> Result<Box<dyn OpKernel>> {
    let single = || -> Box<dyn UnaryFunctor<f32, f32>> { Box::new(near) };
    match build.input(0)? {
        DType::Float => unary_kernel::<f32, f32>(COSTLY, single()),
        DType::Double => unary_kernel::<f64, f64>(COSTLY, near),
        DType::Half => half_unary_kernel::<f16>(COSTLY, single()),
        DType::Bfloat16 => half_unary_kernel::<bf16>(COSTLY, single()),
        dtype => Err(build.unsupported(dtype)),
    }
}
