//! The optimizers' rules: the update of one element of a variable and its slots.
//!
//! Subnormal slots are flushed to zero, as on TensorFlow's threads. Otherwise `0.9 * x` would stay
//! at the smallest subnormal number forever, and computing with it is many times slower.

use crate::update::{Parameter, RealParameter, kernel};
use ferroflow_base::Result;
use ferroflow_opdef::{KernelBuild, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, Element};

type Built = Result<Box<dyn OpKernel>>;

/// Checks the known shapes of variables and gradients for compatibility.
pub(crate) fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let var = ctx.handle_shape(0);
    let mut i = 1;
    while ctx.dtype(i) == Some(DType::Resource) {
        ctx.merge(&var, &ctx.handle_shape(i))?;
        i += 1;
    }
    Ok(())
}

/// Defines the kernel of a rule: its name, its variables, its numbers in the op's order, attrs, and
/// the update of an element, after the common part of all elements. Types in brackets are supported
/// besides the real ones.
macro_rules! rule {
    ($(#[$doc:meta])* $([$($also:ident)*])? $name:ident($($var:ident)*; $($number:ident)*; $($attr:ident)*)
        |$T:ident, $g:ident| { $($before:stmt;)* } $each:block) => {
        $(#[$doc])*
        #[allow(unused_mut, redundant_semicolons, reason = "rules of one shape")]
        pub(crate) fn $name(build: &KernelBuild) -> Built {
            $(let $attr = build.attrs.bool(stringify!($attr))?;)*
            macro_rules! of {
                ($ty:ty) => {{
                    type $T = $ty;
                    kernel::<$T, _, _, _>(build, move |[$($number),*]: [$T; _]| {
                        $($before;)*
                        move |[$($var),*]: [&mut $T; _], mut $g: $T| $each
                    })
                }};
            }
            match build.attrs.dtype("T")? {
                DType::Float | DType::Half | DType::Bfloat16 => of!(f32),
                DType::Double => of!(f64),
                $($(<$also as Element>::DTYPE => of!($also),)*)?
                dtype => Err(build.unsupported(dtype)),
            }
        }
    };
}

/// Shrinks a step by `l1` and `l2`; steps smaller than `l1` become zero.
#[inline(always)]
fn shrunk<T: RealParameter>(x: T, l1: T, l2: T) -> T {
    let (zero, one) = (T::of(0.0), T::of(1.0));
    let l1 = if l1 > zero { l1 } else { zero };
    (x.abs() - l1).or_larger(zero).with_sign_of(x) / (one + l2)
}

rule! { [Complex32 Complex64] gradient_descent(var; lr;) |T, g| {} {
    *var -= g * lr;
}}

rule! { proximal_gradient_descent(var; lr l1 l2;) |T, g| {} {
    *var = shrunk(*var - g * lr, lr * l1, lr * l2);
}}

rule! { [Complex32 Complex64] momentum(var accum; lr momentum; use_nesterov) |T, g| {} {
    *accum = (*accum * momentum + g).flushed();
    if use_nesterov {
        *var -= g * lr + *accum * momentum * lr;
    } else {
        *var -= *accum * lr;
    }
}}

rule! { keras_momentum(var accum; lr momentum; use_nesterov) |T, g| {} {
    *accum = (*accum * momentum - g * lr).flushed();
    if use_nesterov {
        *var += *accum * momentum - g * lr;
    } else {
        *var += *accum;
    }
}}

rule! { [Complex32 Complex64] adagrad(var accum; lr; update_slots) |T, g| {} {
    if update_slots {
        *accum += g * g;
    }
    *var -= g * lr / accum.sqrt();
}}

rule! { adagrad_v2(var accum; lr epsilon; update_slots) |T, g| {} {
    if update_slots {
        *accum += g * g;
    }
    *var -= g * lr / (accum.sqrt() + epsilon);
}}

rule! { adagrad_da(var sum squares; lr l1 l2 step;) |T, g| {} {
    *sum += g;
    *squares += g * g;
    let x = if l1 > T::of(0.0) {
        sum.sign() * (sum.abs() - step * l1).or_larger(T::of(0.0))
    } else {
        *sum
    };
    *var = -lr * x / (l2 * step * lr + squares.sqrt());
}}

rule! { proximal_adagrad(var accum; lr l1 l2;) |T, g| {} {
    *accum += g * g;
    let lr = lr / accum.sqrt();
    *var = shrunk(*var - g * lr, lr * l1, lr * l2);
}}

rule! { adadelta(var accum update; lr rho epsilon;) |T, g| { let rest = T::of(1.0) - rho; } {
    *accum = (*accum * rho + g * g * rest).flushed();
    let by = (*update + epsilon).sqrt() / (*accum + epsilon).sqrt() * g;
    *var -= by * lr;
    *update = (*update * rho + by * by * rest).flushed();
}}

rule! { rms_prop(var ms mom; lr rho momentum epsilon;) |T, g| { let rest = T::of(1.0) - rho; } {
    *ms = (*ms + (g * g - *ms) * rest).flushed();
    *mom = (*mom * momentum + g * lr / (*ms + epsilon).sqrt()).flushed();
    *var -= *mom;
}}

rule! { centered_rms_prop(var mg ms mom; lr rho momentum epsilon;)
|T, g| { let rest = T::of(1.0) - rho; } {
    *ms = (*ms + (g * g - *ms) * rest).flushed();
    *mg = (*mg + (g - *mg) * rest).flushed();
    *mom = (*mom * momentum + g * lr / (*ms - *mg * *mg + epsilon).sqrt()).flushed();
    *var -= *mom;
}}

rule! { [Complex32 Complex64] adam(var m v; beta1_power beta2_power lr beta1 beta2 epsilon; use_nesterov) |T, g| {
    let one = T::of(1.0);
    let alpha = lr * (one - beta2_power).sqrt() / (one - beta1_power);
} {
    *m = (*m + (g - *m) * (one - beta1)).flushed();
    *v = (*v + (g * g - *v) * (one - beta2)).flushed();
    let ahead = if use_nesterov { g * (one - beta1) + beta1 * *m } else { *m };
    *var -= ahead * alpha / (v.sqrt() + epsilon);
}}

rule! { amsgrad(var m v highest; beta1_power beta2_power lr beta1 beta2 epsilon;) |T, g| {
    let one = T::of(1.0);
    let alpha = lr * (one - beta2_power).sqrt() / (one - beta1_power);
} {
    *m = (*m + (g - *m) * (one - beta1)).flushed();
    *v = (*v + (g * g - *v) * (one - beta2)).flushed();
    *highest = highest.or_larger(*v);
    *var -= *m * alpha / (highest.sqrt() + epsilon);
}}

rule! { ada_max(var m v; beta1_power lr beta1 beta2 epsilon;) |T, g| {
    let alpha = lr / (T::of(1.0) - beta1_power);
} {
    *m = (*m + (g - *m) * (T::of(1.0) - beta1)).flushed();
    *v = (beta2 * *v).or_larger(g.abs()).flushed();
    *var -= alpha * (*m / (*v + epsilon));
}}

rule! { add_sign(var m; lr alpha sign_decay beta;) |T, g| {} {
    *m = (*m * beta + g * (T::of(1.0) - beta)).flushed();
    *var -= lr * (alpha + sign_decay * (g.sign() * m.sign())) * g;
}}

rule! { power_sign(var m; lr logbase sign_decay beta;) |T, g| {} {
    *m = (*m * beta + g * (T::of(1.0) - beta)).flushed();
    *var -= lr * (logbase * sign_decay * (g.sign() * m.sign())).exp() * g;
}}

rule! { ftrl(var accum linear; lr l1 l2 power; multiply_linear_by_lr) |T, g| {} {
    let steps = Ftrl { lr, l1, l2, shrinkage: T::of(0.0), power, by_lr: multiply_linear_by_lr };
    steps.apply(var, accum, linear, g);
}}

rule! { ftrl_v2(var accum linear; lr l1 l2 shrinkage power; multiply_linear_by_lr) |T, g| {} {
    let steps = Ftrl { lr, l1, l2, shrinkage, power, by_lr: multiply_linear_by_lr };
    steps.apply(var, accum, linear, g);
}}

/// Follow the regularized leader (FTRL-Proximal, McMahan et al. 2013).
struct Ftrl<T> {
    lr: T,
    l1: T,
    l2: T,
    shrinkage: T,
    power: T,
    /// Whether `linear` is stored multiplied by the learning rate.
    by_lr: bool,
}

impl<T: RealParameter> Ftrl<T> {
    /// Applies the rule to an element. What does not depend on it is decided first, so that loops have no branches.
    #[inline(always)]
    fn apply(&self, var: &mut T, accum: &mut T, linear: &mut T, g: T) {
        match (self.power == T::of(-0.5), self.by_lr) {
            (true, false) => self.apply_with::<true, false>(var, accum, linear, g),
            (true, true) => self.apply_with::<true, true>(var, accum, linear, g),
            (false, false) => self.apply_with::<false, false>(var, accum, linear, g),
            (false, true) => self.apply_with::<false, true>(var, accum, linear, g),
        }
    }

    #[inline(always)]
    fn apply_with<const SQRT: bool, const BY_LR: bool>(
        &self,
        var: &mut T,
        accum: &mut T,
        linear: &mut T,
        g: T,
    ) {
        let two = T::of(2.0);
        let by_variable = two * self.shrinkage * *var;
        // A variable may be infinite.
        let shrunk = g + if self.shrinkage == T::of(0.0) {
            T::of(0.0)
        } else {
            by_variable
        };
        let powered = |accum: T| match SQRT {
            true => accum.sqrt(),
            false => accum.powf(-self.power),
        };
        let next = *accum + g * g;
        let (now, before) = (powered(next), powered(*accum));
        let (l1, y) = if BY_LR {
            *linear = *linear + shrunk * self.lr - (now - before) * *var;
            (self.l1 * self.lr, now + two * self.l2 * self.lr)
        } else {
            *linear = *linear + shrunk - (now - before) / self.lr * *var;
            (self.l1, now / self.lr + two * self.l2)
        };
        *var = if linear.abs() > l1 {
            (l1.with_sign_of(*linear) - *linear) / y
        } else {
            T::of(0.0)
        };
        *accum = next;
    }
}
