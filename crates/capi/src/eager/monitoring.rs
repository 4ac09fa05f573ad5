//! Counters, gauges and samplers (`tensorflow/c/eager/c_api_experimental.h`).

use crate::guard::{delete, guard, guard_plain, handle, text};
use crate::{TF_Buffer, TF_Status};
use ferroflow_model::proto::HistogramProto;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A metric: cells by the values of its labels.
struct Metric<C> {
    cells: Mutex<BTreeMap<Vec<String>, Box<C>>>,
}

impl<C> Metric<C> {
    /// A metric. It takes the place that another one of its name has in TensorFlow's registry.
    fn new() -> Metric<C> {
        Metric {
            cells: Mutex::default(),
        }
    }

    /// The cell of these labels, whose address is fixed.
    fn cell(&self, labels: Vec<String>, make: impl FnOnce() -> C) -> *mut C {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = cells.entry(labels).or_insert_with(|| Box::new(make()));
        std::ptr::from_ref(&**cell).cast_mut()
    }
}

/// The text of a label.
///
/// # Safety
/// `label` is NULL or a C string.
unsafe fn label(label: *const c_char) -> String {
    // SAFETY: as this function's.
    unsafe { text(label) }.unwrap_or("").to_string()
}

/// A counter's value.
#[derive(Default)]
pub struct TFE_MonitoringCounterCell(AtomicI64);
/// An integer gauge's value.
#[derive(Default)]
pub struct TFE_MonitoringIntGaugeCell(AtomicI64);
/// A bool gauge's value.
#[derive(Default)]
pub struct TFE_MonitoringBoolGaugeCell(AtomicBool);
/// A string gauge's value.
#[derive(Default)]
pub struct TFE_MonitoringStringGaugeCell(Mutex<String>);

/// The upper limits of a sampler's buckets.
#[derive(Clone)]
pub struct TFE_MonitoringBuckets(Vec<f64>);

/// A sampler's histogram.
pub struct TFE_MonitoringSamplerCell(Mutex<HistogramProto>);

impl TFE_MonitoringSamplerCell {
    fn new(limits: &[f64]) -> TFE_MonitoringSamplerCell {
        TFE_MonitoringSamplerCell(Mutex::new(HistogramProto {
            min: f64::MAX,
            max: -f64::MAX,
            bucket_limit: limits.to_vec(),
            bucket: vec![0.0; limits.len()],
            ..Default::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HistogramProto> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, value: f64) {
        let mut histogram = self.lock();
        let i = histogram
            .bucket_limit
            .partition_point(|limit| *limit <= value);
        if let Some(n) = histogram.bucket.get_mut(i) {
            *n += 1.0;
        }
        histogram.min = histogram.min.min(value);
        histogram.max = histogram.max.max(value);
        histogram.num += 1.0;
        histogram.sum += value;
        histogram.sum_squares += value * value;
    }
}

/// Declares metrics of one kind, by their numbers of labels.
macro_rules! metrics {
    ($cell:ident, $made:literal, $get:literal: $($metric:ident $new:ident $delete:ident $get_cell:ident($($label:ident),*);)*) => {
        $(
            #[doc = concat!("A ", $made, ".")]
            pub struct $metric(Metric<$cell>);

            #[doc = concat!("Creates a ", $made, ".")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $new(
                name: *const c_char,
                status: *mut TF_Status,
                _description: *const c_char,
                $(_: metrics!(@text $label),)*
            ) -> *mut $metric {
                guard(status, std::ptr::null_mut(), || {
                    // SAFETY: the contract of the header.
                    unsafe { text(name) }?;
                    Ok(handle($metric(Metric::new())))
                })
            }

            metrics!(@rest $cell, $made, $get: $metric $delete $get_cell($($label),*) |_| $cell::default());
        )*
    };
    (@text $label:ident) => { *const c_char };
    (@rest $cell:ident, $made:literal, $get:literal: $metric:ident $delete:ident $get_cell:ident($($label:ident),*) $make:expr) => {
        #[doc = concat!("Deletes a ", $made, " and its cells.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $delete(metric: *mut $metric) {
            // SAFETY: the contract of the header.
            unsafe { delete(metric) }
        }

        #[doc = concat!("Returns the ", $get, " of these labels, which lives as long as the metric.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_cell(
            metric: *mut $metric,
            $($label: *const c_char),*
        ) -> *mut $cell {
            guard_plain(std::ptr::null_mut(), || {
                // SAFETY: the contract of the header.
                let Some(metric) = (unsafe { metric.as_ref() }) else {
                    return std::ptr::null_mut();
                };
                // SAFETY: as above.
                let labels = vec![$(unsafe { label($label) }),*];
                let make: fn(&$metric) -> $cell = $make;
                metric.0.cell(labels, || make(metric))
            })
        }
    };
}

metrics! {
    TFE_MonitoringCounterCell, "counter", "counter":
    TFE_MonitoringCounter0 TFE_MonitoringNewCounter0 TFE_MonitoringDeleteCounter0 TFE_MonitoringGetCellCounter0();
    TFE_MonitoringCounter1 TFE_MonitoringNewCounter1 TFE_MonitoringDeleteCounter1 TFE_MonitoringGetCellCounter1(label1);
    TFE_MonitoringCounter2 TFE_MonitoringNewCounter2 TFE_MonitoringDeleteCounter2 TFE_MonitoringGetCellCounter2(label1, label2);
}

metrics! {
    TFE_MonitoringIntGaugeCell, "gauge of integers", "gauge":
    TFE_MonitoringIntGauge0 TFE_MonitoringNewIntGauge0 TFE_MonitoringDeleteIntGauge0 TFE_MonitoringGetCellIntGauge0();
    TFE_MonitoringIntGauge1 TFE_MonitoringNewIntGauge1 TFE_MonitoringDeleteIntGauge1 TFE_MonitoringGetCellIntGauge1(label1);
    TFE_MonitoringIntGauge2 TFE_MonitoringNewIntGauge2 TFE_MonitoringDeleteIntGauge2 TFE_MonitoringGetCellIntGauge2(label1, label2);
}

metrics! {
    TFE_MonitoringBoolGaugeCell, "gauge of bools", "gauge":
    TFE_MonitoringBoolGauge0 TFE_MonitoringNewBoolGauge0 TFE_MonitoringDeleteBoolGauge0 TFE_MonitoringGetCellBoolGauge0();
    TFE_MonitoringBoolGauge1 TFE_MonitoringNewBoolGauge1 TFE_MonitoringDeleteBoolGauge1 TFE_MonitoringGetCellBoolGauge1(label1);
    TFE_MonitoringBoolGauge2 TFE_MonitoringNewBoolGauge2 TFE_MonitoringDeleteBoolGauge2 TFE_MonitoringGetCellBoolGauge2(label1, label2);
}

metrics! {
    TFE_MonitoringStringGaugeCell, "gauge of strings", "gauge":
    TFE_MonitoringStringGauge0 TFE_MonitoringNewStringGauge0 TFE_MonitoringDeleteStringGauge0 TFE_MonitoringGetCellStringGauge0();
    TFE_MonitoringStringGauge1 TFE_MonitoringNewStringGauge1 TFE_MonitoringDeleteStringGauge1 TFE_MonitoringGetCellStringGauge1(label1);
    TFE_MonitoringStringGauge2 TFE_MonitoringNewStringGauge2 TFE_MonitoringDeleteStringGauge2 TFE_MonitoringGetCellStringGauge2(label1, label2);
    TFE_MonitoringStringGauge3 TFE_MonitoringNewStringGauge3 TFE_MonitoringDeleteStringGauge3 TFE_MonitoringGetCellStringGauge3(label1, label2, label3);
    TFE_MonitoringStringGauge4 TFE_MonitoringNewStringGauge4 TFE_MonitoringDeleteStringGauge4 TFE_MonitoringGetCellStringGauge4(label1, label2, label3, label4);
}

/// Declares samplers, by their numbers of labels.
macro_rules! samplers {
    ($($metric:ident $new:ident $delete:ident $get_cell:ident($($label:ident),*);)*) => {
        $(
            /// A sampler.
            pub struct $metric(Metric<TFE_MonitoringSamplerCell>, Vec<f64>);

            /// Creates a sampler.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $new(
                name: *const c_char,
                buckets: *mut TFE_MonitoringBuckets,
                status: *mut TF_Status,
                _description: *const c_char,
                $(_: metrics!(@text $label),)*
            ) -> *mut $metric {
                guard(status, std::ptr::null_mut(), || {
                    // SAFETY: the contract of the header.
                    let (_, limits) = unsafe { (text(name)?, crate::guard::shared(buckets)?) };
                    Ok(handle($metric(Metric::new(), limits.0.clone())))
                })
            }

            metrics!(@rest TFE_MonitoringSamplerCell, "sampler", "sampler":
                $metric $delete $get_cell($($label),*)
                |metric| TFE_MonitoringSamplerCell::new(&metric.1));
        )*
    };
}

samplers! {
    TFE_MonitoringSampler0 TFE_MonitoringNewSampler0 TFE_MonitoringDeleteSampler0 TFE_MonitoringGetCellSampler0();
    TFE_MonitoringSampler1 TFE_MonitoringNewSampler1 TFE_MonitoringDeleteSampler1 TFE_MonitoringGetCellSampler1(label1);
    TFE_MonitoringSampler2 TFE_MonitoringNewSampler2 TFE_MonitoringDeleteSampler2 TFE_MonitoringGetCellSampler2(label1, label2);
}

/// Creates limits that grow by a factor, with one above all values behind them.
#[unsafe(no_mangle)]
pub extern "C" fn TFE_MonitoringNewExponentialBuckets(
    scale: f64,
    growth_factor: f64,
    bucket_count: c_int,
) -> *mut TFE_MonitoringBuckets {
    guard_plain(std::ptr::null_mut(), || {
        let grown = |i: c_int| scale * growth_factor.powi(i);
        let limits = (0..bucket_count.min(1 << 16)).map(grown);
        handle(TFE_MonitoringBuckets(limits.chain([f64::MAX]).collect()))
    })
}

/// Deletes limits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_MonitoringDeleteBuckets(buckets: *mut TFE_MonitoringBuckets) {
    // SAFETY: the contract of the header.
    unsafe { delete(buckets) }
}

/// Declares functions of cells.
macro_rules! cells {
    ($($(#[$doc:meta])* fn $name:ident($cell:ident: $ty:ty $(, $arg:ident: $arg_ty:ty)*) -> $ret:ty = $body:expr, $otherwise:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(cell: *mut $ty $(, $arg: $arg_ty)*) -> $ret {
                // SAFETY: the contract of the header.
                match unsafe { cell.as_ref() } {
                    Some($cell) => $body,
                    None => $otherwise,
                }
            }
        )*
    };
}

cells! {
    /// Adds to a counter.
    fn TFE_MonitoringCounterCellIncrementBy(cell: TFE_MonitoringCounterCell, value: i64) -> () =
        { cell.0.fetch_add(value, Ordering::Relaxed); }, ();
    /// Returns a counter's value.
    fn TFE_MonitoringCounterCellValue(cell: TFE_MonitoringCounterCell) -> i64 =
        cell.0.load(Ordering::Relaxed), 0;
    /// Sets a gauge.
    fn TFE_MonitoringIntGaugeCellSet(cell: TFE_MonitoringIntGaugeCell, value: i64) -> () =
        cell.0.store(value, Ordering::Relaxed), ();
    /// Returns a gauge's value.
    fn TFE_MonitoringIntGaugeCellValue(cell: TFE_MonitoringIntGaugeCell) -> i64 =
        cell.0.load(Ordering::Relaxed), 0;
    /// Sets a gauge.
    fn TFE_MonitoringBoolGaugeCellSet(cell: TFE_MonitoringBoolGaugeCell, value: bool) -> () =
        cell.0.store(value, Ordering::Relaxed), ();
    /// Returns a gauge's value.
    fn TFE_MonitoringBoolGaugeCellValue(cell: TFE_MonitoringBoolGaugeCell) -> bool =
        cell.0.load(Ordering::Relaxed), false;
    /// Sets a gauge.
    fn TFE_MonitoringStringGaugeCellSet(cell: TFE_MonitoringStringGaugeCell, value: *const c_char) -> () =
        // SAFETY: the contract of the header.
        *cell.0.lock().unwrap_or_else(PoisonError::into_inner) = unsafe { label(value) }, ();
    /// Adds a sample.
    fn TFE_MonitoringSamplerCellAdd(cell: TFE_MonitoringSamplerCell, value: f64) -> () =
        cell.add(value), ();
}

/// Returns a gauge's text; the buffer's fields are set, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_MonitoringStringGaugeCellValue(
    cell: *mut TFE_MonitoringStringGaugeCell,
    buf: *mut TF_Buffer,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (cell, buf) = unsafe { (crate::guard::shared(cell)?, crate::guard::unique(buf)?) };
        let value = cell.0.lock().unwrap_or_else(PoisonError::into_inner);
        *buf = crate::buffer::of_bytes(value.clone().into_bytes());
        Ok(())
    });
}

/// Returns a sampler's histogram, a `HistogramProto`; the buffer's fields are set, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_MonitoringSamplerCellValue(
    cell: *mut TFE_MonitoringSamplerCell,
    buf: *mut TF_Buffer,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (cell, buf) = unsafe { (crate::guard::shared(cell)?, crate::guard::unique(buf)?) };
        *buf = crate::buffer::of_bytes(prost::Message::encode_to_vec(&*cell.lock()));
        Ok(())
    });
}
