//! SqlDataset: rows of a query in an SQLite database (TensorFlow: `core/kernels/data/experimental/sql_dataset_op.cc`,
//! `core/lib/db/sqlite.cc`).
//!
//! A statement borrows its connection, so both stay on a thread of their own, which ends with the iterator.

use crate::common::{Spec, make, text};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, DatasetIterator, Source, State};
use ferroflow_resources::sqlite;
use ferroflow_tensor::{DType, Tensor};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

macro_rules! sql {
    ($name:literal) => {
        Op::new(
            $name,
            "driver_name: string, data_source_name: string, query: string -> handle: variant | \
             output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
        )
        .shape(shapes::scalar)
        .kernel(dataset)
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[sql!("SqlDataset"), sql!("ExperimentalSqlDataset")];

/// Rows that the thread reads ahead.
const AHEAD: usize = 16;

struct Query {
    database: String,
    query: String,
    dtypes: Vec<DType>,
}

fn check(spec: &Spec) -> Result<()> {
    let fits = |dtype: &DType| {
        use DType::*;
        matches!(
            dtype,
            String | Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Bool | Double
        )
    };
    if !spec.dtypes.iter().all(fits) {
        return Err(invalid_argument!(
            "Each element of `output_types_` must be one of: DT_STRING, DT_INT8, DT_INT16, \
             DT_INT32, DT_INT64, DT_UINT8, DT_UINT16, DT_BOOL, DT_DOUBLE "
        ));
    }
    if !spec.shapes.iter().all(|shape| shape.rank() == Some(0)) {
        return Err(invalid_argument!(
            "Each element of `output_shapes_` must be a scalar."
        ));
    }
    Ok(())
}

fn dataset(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        check(spec)?;
        let driver = text(ctx, 0, "driver_name")?;
        let (database, query) = (text(ctx, 1, "data_source_name")?, text(ctx, 2, "query")?);
        if driver != "sqlite" {
            return Err(invalid_argument!(
                "The database type, {driver}, is not supported by SqlDataset. The set of supported \
                 databases is: {{'sqlite'}}."
            ));
        }
        Ok(Arc::new(Query {
            database,
            query,
            dtypes: spec.dtypes.clone(),
        }))
    })
}

impl Source for Query {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(RowIterator {
            source: self,
            rows: None,
            n: 0,
            is_done: false,
        }))
    }
}

struct RowIterator {
    source: Arc<Query>,
    rows: Option<Receiver<Result<Components>>>,
    n: u64,
    is_done: bool,
}

impl RowIterator {
    fn row(&mut self) -> Result<Option<Components>> {
        if self.is_done {
            return Ok(None);
        }
        let rows = match &self.rows {
            Some(rows) => rows,
            None => {
                let (sender, receiver) = sync_channel(AHEAD);
                let source = self.source.clone();
                std::thread::Builder::new()
                    .name("sql".to_string())
                    .spawn(move || {
                        if let Err(error) = source.send_rows(&sender) {
                            // An iterator that is gone does not read the error.
                            drop(sender.send(Err(error)));
                        }
                    })
                    .map_err(|e| internal!("cannot start a thread: {e}"))?;
                self.rows.insert(receiver)
            }
        };
        match rows.recv() {
            Ok(Ok(row)) => {
                self.n += 1;
                Ok(Some(row))
            }
            Ok(Err(error)) => {
                // The next call begins the query again.
                self.rows = None;
                Err(error)
            }
            Err(_) => {
                self.is_done = true;
                Ok(None)
            }
        }
    }
}

impl DatasetIterator for RowIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        services.cancel.check()?;
        self.row()
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut n = self.n;
        state.uint(&mut n)?;
        state.flag(&mut self.is_done)?;
        if state.is_restoring() {
            let is_done = self.is_done;
            (self.rows, self.n, self.is_done) = (None, 0, false);
            while self.n < n && self.row()?.is_some() {}
            self.is_done = is_done;
        }
        Ok(())
    }
}

/// Returns the number and message of an error of SQLite.
fn parts(error: &rusqlite::Error) -> (i32, String) {
    match error {
        rusqlite::Error::SqliteFailure(e, message) => {
            (e.extended_code, message.clone().unwrap_or_default())
        }
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg.clone()),
        other => (1, other.to_string()),
    }
}

fn failed(what: &str, error: &rusqlite::Error, query: &str) -> Status {
    let (number, message) = parts(error);
    sqlite::failed(what, number, &message, query)
}

impl Query {
    fn send_rows(&self, to: &SyncSender<Result<Components>>) -> Result<()> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE
            | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(&self.database, flags).map_err(|e| {
            let reason = match &e {
                rusqlite::Error::SqliteFailure(e, _) => e.to_string(),
                other => other.to_string(),
            };
            sqlite::not_opened(&self.database, parts(&e).0, &reason)
        })?;
        let mut statement = connection
            .prepare(&self.query)
            .map_err(|e| failed("Prepare", &e, &self.query))?;
        let n = statement.column_count();
        if n != self.dtypes.len() {
            return Err(invalid_argument!(
                "The number of columns in query ({n}) must match the number of elements in \
                 output_types ({}).",
                self.dtypes.len()
            ));
        }
        let step = |e: rusqlite::Error| failed("Step", &e, &self.query);
        let mut rows = statement.query([]).map_err(step)?;
        while let Some(row) = rows.next().map_err(step)? {
            let columns = self.dtypes.iter().enumerate();
            let columns =
                columns.map(|(i, dtype)| Ok(column(row.get_ref(i).map_err(step)?, *dtype)));
            if to.send(Ok(columns.collect::<Result<_>>()?)).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Converts a value as SQLite does, then to the dtype.
fn column(value: ValueRef, dtype: DType) -> Tensor {
    let int = || as_int(value);
    match dtype {
        DType::Int8 => Tensor::scalar(int() as i8),
        DType::Int16 => Tensor::scalar(int() as i16),
        DType::Int32 => Tensor::scalar(int() as i32),
        DType::Int64 => Tensor::scalar(int()),
        DType::Uint8 => Tensor::scalar(int() as u8),
        DType::Uint16 => Tensor::scalar(int() as u16),
        DType::Bool => Tensor::scalar(int() != 0),
        DType::Double => Tensor::scalar(as_double(value)),
        _ => Tensor::string(as_text(value)),
    }
}

/// Returns the longest start of a text that is a number, without blanks in front.
fn number_at(text: &[u8], with_fraction: bool) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start();
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with(['+', '-']));
    let mut end = sign + digits(&text[sign..]);
    if with_fraction && text[end..].starts_with('.') {
        end += 1 + digits(&text[end + 1..]);
    }
    if with_fraction && text[end..].starts_with(['e', 'E']) {
        let rest = &text[end + 1..];
        let sign = usize::from(rest.starts_with(['+', '-']));
        let n = digits(&rest[sign..]);
        end += if n > 0 { 1 + sign + n } else { 0 };
    }
    text[..end].to_string()
}

fn as_int(value: ValueRef) -> i64 {
    match value {
        ValueRef::Null => 0,
        ValueRef::Integer(v) => v,
        ValueRef::Real(v) => v as i64,
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            let number = number_at(text, false);
            match number.parse::<i128>() {
                Ok(v) => v.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
                Err(_) if number.len() > 1 && number.starts_with('-') => i64::MIN,
                Err(_) if number.len() > 1 => i64::MAX,
                Err(_) => 0,
            }
        }
    }
}

fn as_double(value: ValueRef) -> f64 {
    match value {
        ValueRef::Null => 0.0,
        ValueRef::Integer(v) => v as f64,
        ValueRef::Real(v) => v,
        ValueRef::Text(text) | ValueRef::Blob(text) => number_at(text, true).parse().unwrap_or(0.0),
    }
}

fn as_text(value: ValueRef) -> Vec<u8> {
    match value {
        ValueRef::Null => Vec::new(),
        ValueRef::Integer(v) => v.to_string().into_bytes(),
        ValueRef::Real(v) => printed(v).into_bytes(),
        ValueRef::Text(text) | ValueRef::Blob(text) => text.to_vec(),
    }
}

/// Prints a number with up to 15 digits and at least one after the point.
fn printed(v: f64) -> String {
    if v.is_infinite() {
        return if v > 0.0 { "Inf" } else { "-Inf" }.to_string();
    }
    // Adding zero removes its sign.
    let v = v + 0.0;
    let digits = format!("{v:.14e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let with_point = |text: &str| match text.contains('.') {
        true => {
            let text = text.trim_end_matches('0');
            let zero = if text.ends_with('.') { "0" } else { "" };
            format!("{text}{zero}")
        }
        false => format!("{text}.0"),
    };
    if (-4..15).contains(&exponent) {
        let places = usize::try_from(14 - exponent).unwrap_or(0);
        return with_point(&format!("{v:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", with_point(mantissa), exponent.abs())
}
