//! [`Mpi`]: buffers of collectives go by MPI, between servers that `mpirun` started.
//!
//! One thread calls MPI. It sends one message at a time and takes in what arrives meanwhile, so that no two tasks wait
//! for each other. MPI does not wake a thread: while a buffer is waited for the thread asks again and again, else it
//! sleeps, and what arrives stays with MPI.

use crate::collectives::carrier::{Buffer, Carrier, Expected, Inbox};
use crate::device::TaskName;
use crate::master_session::lock;
use ferroflow_base::{Result, failed_precondition, internal, invalid_argument};
use mpi::Tag;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, MatchedReceiveVec, Source};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// The tag of all messages.
const TAG: Tag = 7;

/// The most bytes of a buffer in a message: MPI counts in 32 bits.
const PART: usize = 64 << 20;

/// The bytes of a task's name when the tasks tell each other theirs.
const NAME: usize = 256;

/// How often nothing arrived before the thread sleeps a little between two looks.
const PATIENT: u32 = 2000;

/// Carries buffers of collectives by MPI.
///
/// `mpirun -n 4 ferroflow server --mpi` uses it. In a program of one's own, [`MasterOptions::carrier`] takes it.
///
/// ```no_run
/// use ferroflow_remote::{MasterOptions, Mpi, ServerDef};
/// let read = |name: &str| std::env::var(name).ok();
/// let server = ServerDef::from_launcher(&read, "worker", 8888, None)?.expect("started by mpirun");
/// let mpi = Mpi::begin(&server.task)?;
/// let options = MasterOptions { server, carrier: Some(mpi.clone()), ..Default::default() };
/// // … a server with these options …
/// mpi.end();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
///
/// [`MasterOptions::carrier`]: crate::MasterOptions::carrier
#[derive(Debug)]
pub struct Mpi {
    ranks: HashMap<TaskName, i32>,
    orders: Mutex<Sender<Order>>,
    /// Buffers that are waited for.
    expected: Arc<AtomicUsize>,
    n_sent: AtomicUsize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Open(Inbox),
    Send(i32, Buffer, oneshot::Sender<Result<()>>),
    /// Something is expected now.
    Look,
    End,
}

impl Mpi {
    /// Joins the other tasks that `mpirun` started, as this one, and learns their names.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if MPI was begun before in this process; INVALID_ARGUMENT if a name is too long.
    pub fn begin(own: &TaskName) -> Result<Arc<Mpi>> {
        let own = own.to_string();
        if own.len() > NAME {
            return Err(invalid_argument!("the name {own} is too long"));
        }
        let (orders, received) = mpsc::channel();
        let (send, begun) = mpsc::channel();
        let expected = Arc::<AtomicUsize>::default();
        let waiting = expected.clone();
        let thread = std::thread::Builder::new().name("ferroflow-mpi".to_string());
        let thread = thread.spawn(move || {
            let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Funneled)
            else {
                let error = failed_precondition!("MPI was begun before in this process");
                return drop(send.send(Err(error)));
            };
            let world = universe.world();
            // `begin` waits for it.
            drop(send.send(Ok(names(&world, &own))));
            Carriage {
                world: &world,
                expected: waiting,
                inbox: None,
                partial: HashMap::new(),
            }
            .run(&received);
        });
        let thread = thread.map_err(|e| internal!("no thread for MPI: {e}"))?;
        let ranks = begun.recv().map_err(|_| internal!("MPI did not begin"))??;
        let task = |(rank, name): (i32, String)| Some((TaskName::of_device(&name)?, rank));
        Ok(Arc::new(Mpi {
            ranks: ranks.into_iter().filter_map(task).collect(),
            orders: Mutex::new(orders),
            expected,
            n_sent: AtomicUsize::new(0),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// The number of buffers that this task has sent.
    pub fn n_sent(&self) -> usize {
        self.n_sent.load(Ordering::Relaxed)
    }

    /// Ends MPI in this process when the other tasks have ended it, too. A process that has not ended it before it ends
    /// counts as failed.
    pub fn end(&self) {
        self.order(Order::End);
        if let Some(thread) = lock(&self.thread).take() {
            // A thread that panicked has told why.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        // After the end, what an order would have answered is dropped.
        let _ = lock(&self.orders).send(order);
    }
}

/// The names of all tasks, by rank.
fn names(world: &SimpleCommunicator, own: &str) -> Vec<(i32, String)> {
    let mut sent = [0u8; NAME];
    sent[..own.len()].copy_from_slice(own.as_bytes());
    let mut all = vec![0u8; NAME * world.size() as usize];
    world.all_gather_into(&sent[..], &mut all[..]);
    let name = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.trim_end_matches('\0').to_string()
    };
    (0..).zip(all.chunks(NAME).map(name)).collect()
}

impl Carrier for Mpi {
    fn open(&self, inbox: Inbox) {
        self.order(Order::Open(inbox));
    }

    fn reaches(&self, task: &TaskName) -> bool {
        self.ranks.contains_key(task)
    }

    fn send(&self, task: &TaskName, buffer: Buffer) -> oneshot::Receiver<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        match self.ranks.get(task) {
            Some(rank) => {
                self.n_sent.fetch_add(1, Ordering::Relaxed);
                self.order(Order::Send(*rank, buffer, sender));
            }
            None => drop(sender.send(Err(internal!("{task} has no rank")))),
        }
        receiver
    }

    fn expect(&self) -> Expected {
        self.expected.fetch_add(1, Ordering::AcqRel);
        self.order(Order::Look);
        Box::new(Waiting(self.expected.clone()))
    }
}

/// Counts a buffer that is waited for.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the thread has.
struct Carriage<'a> {
    world: &'a SimpleCommunicator,
    expected: Arc<AtomicUsize>,
    inbox: Option<Inbox>,
    /// Buffers of which parts have arrived, by the rank that sends them one after the other.
    partial: HashMap<i32, Vec<u8>>,
}

/// What a message begins with: the step, the bytes of the whole buffer, and the length of the key, which follows.
const HEAD: usize = 24;

impl Carriage<'_> {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut quiet = 0;
        loop {
            let order = match self.expected.load(Ordering::Acquire) {
                0 => orders.recv().map_err(|_| TryRecvError::Disconnected),
                _ => orders.try_recv(),
            };
            match order {
                Ok(Order::Open(inbox)) => self.inbox = Some(inbox),
                Ok(Order::Send(rank, buffer, done)) => {
                    // The member that waits may be gone.
                    let _ = done.send(self.send(rank, &buffer));
                }
                Ok(Order::Look) => {}
                Ok(Order::End) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            match self.take_in() {
                true => quiet = 0,
                false if quiet < PATIENT => {
                    quiet += 1;
                    std::thread::yield_now();
                }
                false => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Sends a buffer in parts, and takes in what arrives meanwhile.
    fn send(&mut self, rank: i32, buffer: &Buffer) -> Result<()> {
        let (bytes, key) = (buffer.tensor.bytes()?, buffer.key.as_bytes());
        let mut parts: Vec<&[u8]> = bytes.chunks(PART).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        for part in parts {
            let mut message = Vec::with_capacity(HEAD + key.len() + part.len());
            message.extend_from_slice(&buffer.step.to_le_bytes());
            message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            message.extend_from_slice(&(key.len() as u64).to_le_bytes());
            message.extend_from_slice(key);
            message.extend_from_slice(part);
            let world = self.world;
            let target = world.process_at_rank(rank);
            mpi::request::scope(|scope| {
                let mut sending = target.immediate_send_with_tag(scope, &message[..], TAG);
                while let Err(not_yet) = sending.test() {
                    sending = not_yet;
                    if !self.take_in() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        Ok(())
    }

    /// Takes in a message; false if there is none.
    fn take_in(&mut self) -> bool {
        let any = self.world.any_process();
        let Some(found) = any.immediate_matched_probe_with_tag(TAG) else {
            return false;
        };
        let (message, status) = found.matched_receive_vec::<u8>();
        let source = status.source_rank();
        let number = |at: usize| {
            let bytes = message.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let head = || {
            let (step, total) = (number(0)? as i64, usize::try_from(number(8)?).ok()?);
            let end = HEAD.checked_add(usize::try_from(number(16)?).ok()?)?;
            let key = std::str::from_utf8(message.get(HEAD..end)?).ok()?;
            Some((step, total, key, message.get(end..)?))
        };
        // Only tasks of the same program send.
        if let Some((step, total, key, part)) = head() {
            let whole = self.partial.entry(source).or_default();
            whole.extend_from_slice(part);
            if whole.len() >= total {
                let whole = self.partial.remove(&source).unwrap_or_default();
                if let Some(inbox) = &self.inbox {
                    inbox.put(step, key, whole);
                }
            }
        }
        true
    }
}
