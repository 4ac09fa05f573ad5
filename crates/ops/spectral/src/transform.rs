//! Transforms along the dimensions of tensors, and the plans they keep.

use crate::half::HalfLength;
use ferroflow_base::{Result, internal};
use ferroflow_fft::{ComplexToReal, Fft, FftDirection, FftError, Real, RealToComplex};
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::KernelCtx;
use ferroflow_primitives::columns::each_columns;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex, Element, Shape, Tensor, dispatch_items};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Elements per task.
const BLOCK: usize = 16 * 1024;

/// A real type with transforms.
pub(crate) trait Sample: Real + Element {}
impl Sample for f32 {}
impl Sample for f64 {}

/// The plan that a transform used last, with its length.
type Last<P> = Mutex<Option<(usize, Arc<P>)>>;

/// The plans of a kernel: one for each dimension that it transforms.
pub(crate) struct Plans<T: Sample> {
    complex: [Last<dyn Fft<T>>; 3],
    /// For rows of even length.
    half: Last<HalfLength<T>>,
    to_complex: Last<dyn RealToComplex<T>>,
    to_real: Last<dyn ComplexToReal<T>>,
}

impl<T: Sample> Default for Plans<T> {
    fn default() -> Self {
        Plans {
            complex: Default::default(),
            half: Default::default(),
            to_complex: Default::default(),
            to_real: Default::default(),
        }
    }
}

fn planned<P: ?Sized>(last: &Last<P>, n: usize, plan: impl FnOnce() -> Arc<P>) -> Arc<P> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some((length, plan)) if *length == n => plan.clone(),
        _ => {
            let plan = plan();
            *last = Some((n, plan.clone()));
            plan
        }
    }
}

/// Returns input 0 without what is beyond `shape` in each dimension.
pub(crate) fn cropped(ctx: &mut KernelCtx, shape: &Shape) -> Result<Tensor> {
    let input = ctx.take_input(0)?;
    if input.shape() == shape {
        return Ok(input);
    }
    let strides = input.shape().strides();
    let axes = shape.iter().zip(&strides);
    let view = Strided::new(0, axes.map(|(&d, &s)| (d, s as isize)));
    let mut out = ctx.alloc(input.dtype(), shape.clone())?;
    dispatch_items!(input.dtype(), T => {
        view.copy_to(ctx.par(), input.items::<T>()?, out.items_mut::<T>()?)?;
    });
    Ok(out)
}

impl<T: Sample> Plans<T>
where
    Complex<T>: Element,
{
    /// Transforms the dimensions `axes`, without scaling unless `scale` is set.
    pub(crate) fn complex(
        &self,
        ctx: &KernelCtx,
        mut x: Tensor,
        axes: Range<usize>,
        forward: bool,
        scale: Option<T>,
    ) -> Result<Tensor> {
        let direction = match forward {
            true => FftDirection::Forward,
            false => FftDirection::Inverse,
        };
        let (rank, first) = (x.shape().rank(), axes.start);
        for (i, axis) in axes.enumerate().rev() {
            let n = x.shape()[axis];
            let plan = planned(&self.complex[i.min(2)], n, || T::complex(n, direction));
            let scale = scale.filter(|_| axis == first);
            if axis + 1 == rank {
                x = rows(ctx, x, &*plan, scale)?;
                continue;
            }
            let columns = x.shape()[axis + 1..].iter().product();
            let values = x.slice_mut::<Complex<T>>()?;
            each_columns(ctx.par(), n, columns, values, &|columns| {
                transform(columns, &*plan, scale);
            });
        }
        Ok(x)
    }

    /// Transforms real rows of length `n` to half spectra.
    pub(crate) fn real_to_complex(
        &self,
        ctx: &KernelCtx,
        x: &Tensor,
        n: usize,
        shape: Shape,
    ) -> Result<Tensor> {
        let mut out = ctx.alloc(<Complex<T> as Element>::DTYPE, shape)?;
        let (x, width) = (x.slice::<T>()?, n / 2 + 1);
        let group = (BLOCK / n).max(1);
        if n.is_multiple_of(2) {
            let plan = planned(&self.half, n, || {
                Arc::new(HalfLength::new(n, FftDirection::Forward))
            });
            let to = out.slice_mut::<Complex<T>>()?;
            par_chunks_mut(ctx.par(), to, group * width, 1, &|block, spectra| {
                let mut scratch = plan.scratch();
                let signals = x[block * group * n..].chunks_exact(n);
                for (signal, to) in signals.zip(spectra.chunks_exact_mut(width)) {
                    plan.transform(signal, to, &mut scratch);
                }
            });
            return Ok(out);
        }
        let plan = planned(&self.to_complex, n, || T::real_to_complex(n));
        let failed = Mutex::new(None);
        par_chunks_mut(
            ctx.par(),
            out.slice_mut::<Complex<T>>()?,
            group * width,
            1,
            &|block, spectra| {
                let (mut signal, mut scratch) = (plan.make_input_vec(), plan.make_scratch_vec());
                let signals = x[block * group * n..].chunks_exact(n);
                for (from, to) in signals.zip(spectra.chunks_exact_mut(width)) {
                    signal.copy_from_slice(from);
                    if let Err(e) = plan.process_with_scratch(&mut signal, to, &mut scratch) {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    }
                }
            },
        );
        finished(out, failed)
    }

    /// Transforms half spectra to real rows of length `n`, multiplied by `scale`.
    pub(crate) fn complex_to_real(
        &self,
        ctx: &KernelCtx,
        x: Tensor,
        n: usize,
        shape: Shape,
        scale: T,
    ) -> Result<Tensor> {
        let mut out = ctx.alloc(T::DTYPE, shape)?;
        let (x, width) = (x.slice::<Complex<T>>()?, n / 2 + 1);
        let group = (BLOCK / n).max(1);
        if n.is_multiple_of(2) {
            let plan = planned(&self.half, n, || {
                Arc::new(HalfLength::new(n, FftDirection::Inverse))
            });
            let to = out.slice_mut::<T>()?;
            par_chunks_mut(ctx.par(), to, group * n, 1, &|block, signals| {
                let (mut spectrum, mut scratch) = (vec![Complex::default(); width], plan.scratch());
                let spectra = x[block * group * width..].chunks_exact(width);
                for (from, to) in spectra.zip(signals.chunks_exact_mut(n)) {
                    spectrum.copy_from_slice(from);
                    plan.invert(&mut spectrum, to, scale, &mut scratch);
                }
            });
            return Ok(out);
        }
        let plan = planned(&self.to_real, n, || T::complex_to_real(n));
        let failed = Mutex::new(None);
        par_chunks_mut(
            ctx.par(),
            out.slice_mut::<T>()?,
            group * n,
            1,
            &|block, signals| {
                let (mut spectrum, mut scratch) = (plan.make_input_vec(), plan.make_scratch_vec());
                let spectra = x[block * group * width..].chunks_exact(width);
                for (from, to) in spectra.zip(signals.chunks_exact_mut(n)) {
                    spectrum.copy_from_slice(from);
                    // The spectrum of a real signal is real there; what is not is ignored.
                    spectrum[0].im = T::zero();
                    if let Err(e) = plan.process_with_scratch(&mut spectrum, to, &mut scratch) {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    }
                    to.iter_mut().for_each(|v| *v = *v * scale);
                }
            },
        );
        finished(out, failed)
    }
}

fn finished(out: Tensor, failed: Mutex<Option<FftError>>) -> Result<Tensor> {
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(out),
        Some(e) => Err(internal!("real FFT: {e}")),
    }
}

/// Transforms the rows of `x`, in place if its storage is free.
fn rows<T: Sample>(
    ctx: &KernelCtx,
    mut x: Tensor,
    plan: &dyn Fft<T>,
    scale: Option<T>,
) -> Result<Tensor>
where
    Complex<T>: Element,
{
    let n = plan.len();
    let size = (BLOCK / n).max(1) * n;
    if x.is_unique() {
        let values = x.slice_mut::<Complex<T>>()?;
        par_chunks_mut(ctx.par(), values, size, 1, &|_, rows| {
            transform(rows, plan, scale);
        });
        return Ok(x);
    }
    let mut out = ctx.alloc(x.dtype(), x.shape().clone())?;
    let from = x.slice::<Complex<T>>()?;
    let to = out.slice_mut::<Complex<T>>()?;
    par_chunks_mut(ctx.par(), to, size, 1, &|i, rows| {
        rows.copy_from_slice(&from[i * size..][..rows.len()]);
        transform(rows, plan, scale);
    });
    Ok(out)
}

/// Transforms rows in place.
fn transform<T: Sample>(rows: &mut [Complex<T>], plan: &dyn Fft<T>, scale: Option<T>) {
    let mut scratch = vec![Complex::new(T::zero(), T::zero()); plan.get_inplace_scratch_len()];
    plan.process_with_scratch(rows, &mut scratch);
    if let Some(scale) = scale {
        rows.iter_mut().for_each(|v| *v = v.scale(scale));
    }
}
