//! Numbers: `tfrt.constant.*`, arithmetic, comparison, casts, printing.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Attr, Ctx, ExecutionContext, KernelCost, KernelRegistry};
use ferroflow_sync::Chain;

fn divide_by_zero() -> ferroflow_base::Status {
    invalid_argument!("Divide by zero")
}

macro_rules! integers {
    ($registry:expr, $($ty:ty: $name:literal),*) => {
        $({
            fn div(a: $ty, b: $ty) -> Result<($ty, $ty)> {
                if b == 0 {
                    return Err(divide_by_zero());
                }
                Ok((a.wrapping_div(b), a.wrapping_rem(b)))
            }
            $registry
                .add(concat!("tfrt.constant.i", $name), |value: Attr<$ty>| value.0)
                .add(concat!("tfrt.add.i", $name), |a: $ty, b: $ty| a.wrapping_add(b))
                .add(concat!("tfrt.minus.i", $name), |a: $ty, b: $ty| a.wrapping_sub(b))
                .add(concat!("tfrt.mul.i", $name), |a: $ty, b: $ty| a.wrapping_mul(b))
                .add(concat!("tfrt.equal.i", $name), |a: $ty, b: $ty| a == b)
                .add(concat!("tfrt.lessequal.i", $name), |a: $ty, b: $ty| a <= b)
                .add(concat!("tfrt.div.i", $name), div)
                .add_sync(concat!("tfrt.constant_s.i", $name), |value: Attr<$ty>| value.0)
                .add_sync(concat!("tfrt.add_s.i", $name), |a: $ty, b: $ty| a.wrapping_add(b))
                .add_sync(concat!("tfrt.minus_s.i", $name), |a: $ty, b: $ty| a.wrapping_sub(b))
                .add_sync(concat!("tfrt.mul_s.i", $name), |a: $ty, b: $ty| a.wrapping_mul(b))
                .add_sync(concat!("tfrt.equal_s.i", $name), |a: $ty, b: $ty| a == b)
                .add_sync(concat!("tfrt.lessequal_s.i", $name), |a: $ty, b: $ty| a <= b);
        })*
    };
}

macro_rules! floats {
    ($registry:expr, $($ty:ty: $name:literal),*) => {
        $({
            fn div(a: $ty, b: $ty) -> Result<$ty> {
                if b == 0.0 {
                    return Err(divide_by_zero());
                }
                Ok(a / b)
            }
            $registry
                .add(concat!("tfrt.constant.", $name), |value: Attr<$ty>| value.0)
                .add(concat!("tfrt.add.", $name), |a: $ty, b: $ty| a + b)
                .add(concat!("tfrt.minimum.", $name), |a: $ty, b: $ty| a.min(b))
                .add(concat!("tfrt.multiply.", $name), |a: $ty, b: $ty| a * b)
                .add(concat!("tfrt.div.", $name), div)
                .add(concat!("tfrt.cast.i64_to_", $name), |value: i64| value as $ty)
                .add(concat!("tfrt.cast.", $name, "_to_i64"), |value: $ty| value as i64)
                .add_sync(concat!("tfrt.constant_s.", $name), |value: Attr<$ty>| value.0);
        })*
    };
}

/// Formats a number like C's `%f`.
pub(super) fn fixed(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_string();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_string();
    }
    format!("{value:.6}")
}

/// Formats a number like LLVM's streams: C's `%e`.
pub(super) fn scientific(value: f64) -> String {
    if !value.is_finite() {
        return fixed(value).to_uppercase().replace("NAN", "nan");
    }
    let text = format!("{value:.6e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

fn print(text: &str, ctx: &ExecutionContext) -> Chain {
    ctx.host().print(&format!("{text}\n"));
    Chain
}

fn print_bool(value: bool, ctx: Ctx) -> Chain {
    print(&format!("int1 = {}", i32::from(value)), &ctx)
}

fn register_inexpensive(registry: &mut KernelRegistry) {
    integers!(registry, i32: "32", i64: "64");
    floats!(registry, f32: "f32", f64: "f64");
    registry
        .add("tfrt.constant.i1", |value: Attr<bool>| value.0)
        .add_sync("tfrt.constant_s.i1", |value: Attr<bool>| value.0)
        .add("tfrt.constant.ui32", |value: Attr<u32>| value.0)
        .add("tfrt.constant.ui64", |value: Attr<u64>| value.0)
        .add("tfrt.and.i1", |a: bool, b: bool| a & b);
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .with_cost(KernelCost::Inexpensive, register_inexpensive)
        .add("tfrt.print.i1", print_bool)
        .add("tfrt.print.i32", |value: i32, ctx: Ctx| {
            print(&format!("int32 = {value}"), &ctx)
        })
        .add("tfrt.print.i64", |value: i64, ctx: Ctx| {
            print(&format!("int64 = {value}"), &ctx)
        })
        .add("tfrt.print.f32", |value: f32, ctx: Ctx| {
            print(&format!("f32 = {}", fixed(value.into())), &ctx)
        })
        .add("tfrt.print.f64", |value: f64, ctx: Ctx| {
            print(&format!("f64 = {}", fixed(value)), &ctx)
        });
}
