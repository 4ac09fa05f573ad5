//! CreateSummaryDbWriter: summaries in an SQLite database with TensorBoard's tables (TensorFlow:
//! `core/summary/summary_db_writer.cc`).
//!
//! Rows for tensors are not reserved ahead, which in TensorFlow leaves rows without a dtype behind.

use crate::summary_tables::TABLES;
use crate::summary_writer::{Sink, create_sink, text};
use ferroflow_base::{Result, Status, data_loss, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{
    Event, GraphDef, HistogramProto, SummaryMetadata, event::What, summary, summary::value::Value,
};
use ferroflow_model::tensor_from_proto;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_resources::sqlite;
use ferroflow_tensor::{Bytes, DType, Shape, Tensor};
use prost::Message;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, params};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "CreateSummaryDbWriter",
    "writer: resource, db_uri: string, experiment_name: string, run_name: string, user_name: \
     string -> | | stateful",
)
.kernel(|_| Ok(Box::new(create)))];

fn create(ctx: &mut KernelCtx) -> Result<()> {
    create_sink(ctx, || {
        let path = text(ctx, 1, "db_uri")?;
        let connection = open(&path)?;
        Ok(Box::new(Database {
            connection,
            tier: 0,
            experiment_name: text(ctx, 2, "experiment_name")?,
            run_name: text(ctx, 3, "run_name")?,
            user_name: text(ctx, 4, "user_name")?,
            user: None,
            experiment: None,
            run: None,
            tags: HashMap::new(),
        }))
    })
}

/// Settings of a database, each with the environment variable that has its value.
const SETTINGS: &[(&str, &str)] = &[
    ("secure_delete", "TF_SQLITE_SECURE_DELETE"),
    ("page_size", "TF_SQLITE_PAGE_SIZE"),
    ("journal_mode", "TF_SQLITE_JOURNAL_MODE"),
    ("synchronous", "TF_SQLITE_SYNCHRONOUS"),
    ("mmap_size", "TF_SQLITE_MMAP_SIZE"),
    ("locking_mode", "TF_SQLITE_LOCKING_MODE"),
    ("cache_size", "TF_SQLITE_CACHE_SIZE"),
    ("auto_vacuum", "TF_SQLITE_AUTO_VACUUM"),
];

/// Opens a database, creates it if needed, and creates the tables that it lacks.
fn open(path: &str) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE
        | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| {
        let (number, message) = parts(&e);
        sqlite::not_opened(path, number, &message)
    })?;
    for (setting, variable) in SETTINGS {
        let value = std::env::var(variable).unwrap_or_default();
        if !value.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(invalid_argument!(
                "getenv({variable}): Illegal pragma character in '{value}'"
            ));
        }
        if !value.is_empty() {
            let sql = format!("PRAGMA {setting}={value}");
            // Some settings return their new value.
            let set = connection.query_row(&sql, [], |_| Ok(()));
            set.optional().map_err(|e| failed(&e, &sql))?;
        }
    }
    for sql in TABLES {
        execute(&connection, sql, [])?;
    }
    Ok(connection)
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

fn failed(error: &rusqlite::Error, sql: &str) -> Status {
    let (number, message) = parts(error);
    sqlite::failed("Step", number, &message, sql)
}

fn execute(connection: &Connection, sql: &str, values: impl Params) -> Result<()> {
    let done = connection.execute(sql, values);
    done.map(drop).map_err(|e| failed(&e, sql))
}

/// An experiment or run, and when it began.
struct Started {
    id: i64,
    time: f64,
}

/// A database, and what was written to it for one run.
struct Database {
    connection: Connection,
    /// Which of [`ID_TIERS`] new ids are from.
    tier: usize,
    experiment_name: String,
    run_name: String,
    user_name: String,
    user: Option<i64>,
    experiment: Option<Started>,
    run: Option<Started>,
    /// The ids of tags.
    tags: HashMap<String, i64>,
}

/// The largest ids: those of 23 bits until one is taken, and so on.
const ID_TIERS: [i64; 3] = [0x7f_ffff, 0x7fff_ffff, 0x7fff_ffff_ffff];
/// How often a new id may be one that is taken.
const MAX_COLLISIONS: usize = 21;

/// Seconds since 1970.
fn now() -> f64 {
    let now = std::time::UNIX_EPOCH.elapsed();
    now.map_or(0.0, |t| t.as_micros() as f64 / 1e6)
}

impl Database {
    fn new_id(&mut self) -> Result<i64> {
        let sql = "INSERT INTO Ids (id) VALUES (?)";
        let mut last = None;
        for _ in 0..MAX_COLLISIONS {
            let largest = ID_TIERS.get(self.tier).copied().unwrap_or(i64::MAX);
            let id = (RandomState::new().hash_one(0) as i64 & largest).max(1);
            match execute(&self.connection, sql, [id]) {
                Ok(()) => return Ok(id),
                // SQLite's error for a violated constraint.
                Err(e) if e.code() == ferroflow_base::Code::InvalidArgument => last = Some(e),
                Err(e) => return Err(e),
            }
            self.tier = (self.tier + 1).min(ID_TIERS.len() - 1);
        }
        Err(last.unwrap_or_else(|| invalid_argument!("no id is free")))
    }

    fn user(&mut self, now: f64) -> Result<Option<i64>> {
        if self.user.is_some() || self.user_name.is_empty() {
            return Ok(self.user);
        }
        let sql = "SELECT user_id FROM Users WHERE user_name = ?";
        let found = self
            .connection
            .query_row(sql, [&self.user_name], |row| row.get(0));
        let found = found.optional().map_err(|e| failed(&e, sql))?;
        let id = match found {
            Some(id) => id,
            None => {
                let id = self.new_id()?;
                execute(
                    &self.connection,
                    "INSERT INTO Users (user_id, user_name, inserted_time) VALUES (?, ?, ?)",
                    params![id, self.user_name, now],
                )?;
                id
            }
        };
        self.user = Some(id);
        Ok(self.user)
    }

    fn new_experiment(&mut self, now: f64, time: f64) -> Result<Started> {
        let user = self.user(now)?;
        let sql = "SELECT experiment_id, started_time FROM Experiments \
                   WHERE user_id IS ? AND experiment_name = ?";
        let found = self
            .connection
            .query_row(sql, params![user, self.experiment_name], |row| {
                Ok(Started {
                    id: row.get(0)?,
                    time: row.get(1)?,
                })
            });
        if let Some(found) = found.optional().map_err(|e| failed(&e, sql))? {
            return Ok(found);
        }
        let id = self.new_id()?;
        execute(
            &self.connection,
            "INSERT INTO Experiments (user_id, experiment_id, experiment_name, inserted_time, \
             started_time, is_watching) VALUES (?, ?, ?, ?, ?, 0)",
            params![user, id, self.experiment_name, now, time],
        )?;
        Ok(Started { id, time })
    }

    /// Returns the experiment, which began at `time` or before.
    fn experiment(&mut self, now: f64, time: f64) -> Result<Option<i64>> {
        if self.experiment_name.is_empty() {
            return Ok(None);
        }
        let mut experiment = match self.experiment.take() {
            Some(experiment) => experiment,
            None => self.new_experiment(now, time)?,
        };
        let sql = "UPDATE Experiments SET started_time = ? WHERE experiment_id = ?";
        let updated = self.begin(&mut experiment, time, sql);
        let id = experiment.id;
        self.experiment = Some(experiment);
        updated.map(|()| Some(id))
    }

    /// Returns the run, which began at `time` or before; `None` without a name.
    fn run(&mut self, now: f64, time: f64) -> Result<Option<i64>> {
        if self.run_name.is_empty() {
            return Ok(None);
        }
        let experiment = self.experiment(now, time)?;
        let mut run = match self.run.take() {
            Some(run) => run,
            None => {
                let id = self.new_id()?;
                execute(
                    &self.connection,
                    "INSERT OR REPLACE INTO Runs (experiment_id, run_id, run_name, inserted_time, \
                     started_time) VALUES (?, ?, ?, ?, ?)",
                    params![experiment, id, self.run_name, now, time],
                )?;
                Started { id, time }
            }
        };
        let sql = "UPDATE Runs SET started_time = ? WHERE run_id = ?";
        let updated = self.begin(&mut run, time, sql);
        let id = run.id;
        self.run = Some(run);
        updated.map(|()| Some(id))
    }

    /// Moves the beginning of `what` to `time`, by a statement, if that is earlier.
    fn begin(&self, what: &mut Started, time: f64, sql: &str) -> Result<()> {
        if time >= what.time {
            return Ok(());
        }
        what.time = time;
        execute(&self.connection, sql, params![time, what.id])
    }

    fn tag(&mut self, name: &str, time: f64, metadata: &SummaryMetadata) -> Result<i64> {
        let now = now();
        let run = self.run(now, time)?;
        if let Some(id) = self.tags.get(name) {
            return Ok(*id);
        }
        let id = self.new_id()?;
        execute(
            &self.connection,
            "INSERT OR REPLACE INTO Descriptions (id, description) VALUES (?, ?)",
            params![id, metadata.summary_description],
        )?;
        let plugin = metadata.plugin_data.clone().unwrap_or_default();
        execute(
            &self.connection,
            "INSERT INTO Tags (run_id, tag_id, tag_name, inserted_time, display_name, plugin_name, \
             plugin_data) VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![
                run,
                id,
                name,
                now,
                metadata.display_name,
                plugin.plugin_name,
                &plugin.content[..]
            ],
        )?;
        self.tags.insert(name.to_string(), id);
        Ok(id)
    }

    /// Writes a tensor at a step of a tag, in place of the former one.
    fn append(&mut self, place: &Place, metadata: &SummaryMetadata, t: &Tensor) -> Result<()> {
        let written = self.tag(place.tag, place.time, metadata);
        let written = written.and_then(|tag| self.append_to(tag, place, t));
        written.map_err(|e| {
            let (user, experiment) = (&self.user_name, &self.experiment_name);
            let (run, tag, step) = (&self.run_name, place.tag, place.step);
            e.prefixed(&format!("{user}/{experiment}/{run}/{tag}@{step}: "))
        })
    }

    fn append_to(&mut self, tag: i64, place: &Place, t: &Tensor) -> Result<()> {
        let is_list = t.dtype() == DType::String && t.shape().rank() > 0;
        let data = match t.dtype() {
            _ if is_list => None,
            DType::String => t.strings()?.first().map(|text| &text[..]),
            _ => Some(t.bytes()?),
        };
        let dims: Vec<String> = t.shape().dims().iter().map(ToString::to_string).collect();
        let commit = |e| failed(&e, "COMMIT");
        let transaction = self.connection.transaction().map_err(commit)?;
        // Strings of a tensor that is replaced would stay.
        execute(
            &transaction,
            "DELETE FROM TensorStrings WHERE tensor_rowid IN \
             (SELECT rowid FROM Tensors WHERE series = ? AND step = ?)",
            params![tag, place.step],
        )?;
        execute(
            &transaction,
            "INSERT OR REPLACE INTO Tensors (series, step, dtype, computed_time, shape, data) \
             VALUES (?, ?, ?, ?, ?, ?)",
            params![
                tag,
                place.step,
                t.dtype() as i32,
                place.time,
                dims.join(","),
                data.unwrap_or_default()
            ],
        )?;
        if is_list {
            let row = transaction.last_insert_rowid();
            let sql = "INSERT INTO TensorStrings (tensor_rowid, idx, data) VALUES (?, ?, ?)";
            let mut insert = transaction.prepare(sql).map_err(|e| failed(&e, sql))?;
            for (i, text) in t.strings()?.iter().enumerate() {
                let done = insert.execute(params![row, i as i64, &text[..]]);
                done.map_err(|e| failed(&e, sql))?;
            }
        }
        transaction.commit().map_err(commit)
    }

    fn write_graph(&mut self, time: f64, mut graph: GraphDef) -> Result<()> {
        let now = now();
        let run = self.run(now, time)?;
        let id = self.new_id()?;
        let commit = |e| failed(&e, "COMMIT");
        let transaction = self.connection.transaction().map_err(commit)?;
        write_inputs(&transaction, id, &graph)?;
        let sql = "INSERT INTO Nodes (graph_id, node_id, node_name, op, device, node_def) \
                   VALUES (?, ?, ?, ?, ?, ?)";
        let mut insert = transaction.prepare(sql).map_err(|e| failed(&e, sql))?;
        for (i, mut node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
            let texts = [&mut node.name, &mut node.op, &mut node.device].map(std::mem::take);
            let [name, op, device] = texts;
            node.input.clear();
            let rest = node.encode_to_vec();
            let done = insert.execute(params![id, i as i64, name, op, device, rest]);
            done.map_err(|e| failed(&e, sql))?;
        }
        drop(insert);
        execute(
            &transaction,
            "INSERT OR REPLACE INTO Graphs (run_id, graph_id, inserted_time, graph_def) \
             VALUES (?, ?, ?, ?)",
            params![run, id, now, graph.encode_to_vec()],
        )?;
        transaction.commit().map_err(commit)
    }

    fn write_values(&mut self, step: i64, time: f64, values: Vec<summary::Value>) -> Result<()> {
        let mut values = values.into_iter();
        values.try_for_each(|value| self.write_value(step, time, value))
    }

    /// Writes a value of an event as the tensor that TensorBoard makes of it.
    fn write_value(&mut self, step: i64, time: f64, value: summary::Value) -> Result<()> {
        let metadata = value.metadata.unwrap_or_default();
        let (plugin, tensor) = match value.value {
            Some(Value::Tensor(t)) => ("", tensor_from_proto(&t, None)?.get()?),
            Some(Value::SimpleValue(x)) => ("scalars", Tensor::scalar(x)),
            Some(Value::Histo(histogram)) => ("histograms", buckets(&histogram)?),
            Some(Value::Image(image)) => {
                let [width, height] = [image.width, image.height].map(|n| n.to_string());
                let texts = vec![width.into(), height.into(), image.encoded_image_string];
                ("images", Tensor::from_strings([3], texts)?)
            }
            Some(Value::Audio(audio)) => {
                let texts = vec![audio.encoded_audio_string, Bytes::new()];
                ("audio", Tensor::from_strings([1, 2], texts)?)
            }
            Some(Value::ObsoleteOldStyleHistogram(_)) | None => return Ok(()),
        };
        check_dtype(&tensor)?;
        let place = Place {
            step,
            time,
            tag: &value.tag,
        };
        self.append(&place, &of_plugin(metadata, plugin), &tensor)
    }
}

/// Where a tensor belongs.
struct Place<'a> {
    step: i64,
    time: f64,
    tag: &'a str,
}

fn write_inputs(connection: &Connection, graph_id: i64, graph: &GraphDef) -> Result<()> {
    let names = graph.node.iter().enumerate();
    let ids: HashMap<&str, usize> = names.map(|(i, n)| (&n.name[..], i)).collect();
    let sql = "INSERT INTO NodeInputs (graph_id, node_id, idx, input_node_id, input_node_idx, \
               is_control) VALUES (?, ?, ?, ?, ?, ?)";
    let mut insert = connection.prepare(sql).map_err(|e| failed(&e, sql))?;
    for (i, node) in graph.node.iter().enumerate() {
        for (idx, input) in node.input.iter().enumerate() {
            let (name, slot) = match input.rsplit_once(':') {
                Some((name, slot)) => (name, slot.parse().ok()),
                None => (&input[..], Some(0i64)),
            };
            let slot = slot.ok_or_else(|| data_loss!("Bad NodeDef.input: {input}"))?;
            let is_control = name.starts_with('^');
            let name = name.strip_prefix('^').unwrap_or(name);
            let from = ids.get(name);
            let from = *from.ok_or_else(|| data_loss!("Could not find node: {name}"))?;
            let row = params![
                graph_id,
                i as i64,
                idx as i64,
                from as i64,
                slot,
                is_control
            ];
            insert.execute(row).map_err(|e| failed(&e, sql))?;
        }
    }
    Ok(())
}

/// Returns rows of edge, edge and count, the first edge being TensorFlow's smallest positive number.
fn buckets(histogram: &HistogramProto) -> Result<Tensor> {
    let (limits, counts) = (&histogram.bucket_limit, &histogram.bucket);
    if limits.len() != counts.len() {
        return Err(invalid_argument!("size mismatch"));
    }
    let lefts = std::iter::once(&f64::MIN_POSITIVE).chain(limits);
    let rows = lefts.zip(limits).zip(counts);
    let data: Vec<f64> = rows.flat_map(|((a, b), n)| [*a, *b, *n]).collect();
    Tensor::from_slice([limits.len(), 3], &data)
}

/// Returns metadata that name a plugin.
fn of_plugin(mut metadata: SummaryMetadata, plugin: &str) -> SummaryMetadata {
    let data = metadata.plugin_data.get_or_insert_default();
    if data.plugin_name.is_empty() {
        data.plugin_name = plugin.to_string();
    }
    metadata
}

fn check_dtype(t: &Tensor) -> Result<()> {
    use DType::*;
    let dtype = t.dtype();
    match dtype {
        String | Half | Float | Double | Complex64 | Complex128 | Int8 | Int16 | Int32 | Int64
        | Uint8 | Uint16 | Uint32 | Uint64 => Ok(()),
        _ => Err(unimplemented_error!(
            "{dtype} tensors unsupported on platform"
        )),
    }
}

impl Sink for Database {
    fn tensor(&mut self, step: i64, tag: String, t: &Tensor, of: SummaryMetadata) -> Result<()> {
        check_dtype(t)?;
        let (time, tag) = (now(), &tag[..]);
        self.append(&Place { step, time, tag }, &of, t)
    }

    /// The first element of a larger tensor counts.
    fn scalar(&mut self, step: i64, tag: String, t: &Tensor) -> Result<()> {
        if t.num_elements() == 0 {
            return Err(invalid_argument!("value must not be empty"));
        }
        let metadata = of_plugin(SummaryMetadata::default(), "scalars");
        self.tensor(step, tag, &t.view(0, Shape::scalar())?, metadata)
    }

    fn values(&mut self, step: i64, values: Vec<summary::Value>) -> Result<()> {
        self.write_values(step, now(), values)
    }

    fn graph(&mut self, _step: i64, graph: GraphDef) -> Result<()> {
        self.write_graph(now(), graph)
    }

    fn event(&mut self, event: Event) -> Result<()> {
        let (step, time) = (event.step, event.wall_time);
        match event.what {
            Some(What::Summary(summary)) => self.write_values(step, time, summary.value),
            Some(What::GraphDef(bytes)) => {
                let graph = GraphDef::decode(bytes).map_err(|_| invalid_argument!("bad proto"))?;
                self.write_graph(time, graph)
            }
            _ => Ok(()),
        }
    }

    /// Rows are written at once.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        let sql = "UPDATE Runs SET finished_time = ? WHERE run_id = ?";
        execute(&self.connection, sql, params![now(), run.id])
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // No caller reads the error.
        drop(self.finish());
    }
}
