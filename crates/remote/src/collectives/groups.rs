//! Groups and instances: which devices take part in a collective (TensorFlow:
//! `core/common_runtime/collective_param_resolver_local.cc`).

use crate::device::TaskName;
use crate::master_session::lock;
use ferroflow_base::{Result, Status, failed_precondition, internal, invalid_argument};
use ferroflow_model::proto::{
    CompleteGroupRequest, CompleteGroupResponse, CompleteInstanceRequest, DeviceAttributes,
};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// `CollectiveType` of a broadcast, the only kind whose members wait for each other here.
pub(crate) const BROADCAST: i32 = 1;

/// The members of a group, in the order of their ranks.
pub(crate) struct Group {
    pub(crate) key: i32,
    pub(crate) device_type: String,
    pub(crate) members: Vec<DeviceAttributes>,
}

impl Group {
    /// The rank of a device.
    ///
    /// # Errors
    /// INTERNAL if it is not a member.
    pub(crate) fn rank(&self, device: &str) -> Result<usize> {
        let rank = self.members.iter().position(|m| m.name == device);
        rank.ok_or_else(|| internal!("device {device} is not in the group {}", self.key))
    }

    /// Checks that a device has the rank that it asks for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it has another one; INTERNAL if it is not a member.
    pub(crate) fn check_rank(&self, device: &str, asked: usize) -> Result<()> {
        match self.rank(device)? {
            rank if rank == asked => Ok(()),
            rank => Err(invalid_argument!(
                "{device} asks for rank {asked} of the group {}, where it has rank {rank}: if not all members ask \
                 for ranks, or the leader is a server of TensorFlow, they have the order of their devices",
                self.key
            )),
        }
    }

    /// The number of devices of each task.
    pub(crate) fn devices_per_task(&self) -> Vec<usize> {
        let tasks = self.members.iter().map(|m| TaskName::of_device(&m.name));
        let tasks: Vec<_> = tasks.collect();
        let runs = tasks.chunk_by(|a, b| a == b);
        runs.map(<[_]>::len).collect()
    }

    /// Checks that a member that has joined is the same as then.
    fn check(&self, size: usize, device: &DeviceAttributes) -> Result<()> {
        check_size(self.key, self.members.len(), size, device)?;
        match self.members.iter().find(|m| m.name == device.name) {
            None => Err(internal!(
                "Device {} is joining a group that is already full (group_key={})",
                device.name,
                self.key
            )),
            Some(member) => check_incarnation(member, device),
        }
    }

    pub(crate) fn to_proto(&self) -> CompleteGroupResponse {
        CompleteGroupResponse {
            group_key: self.key,
            group_size: self.members.len() as i32,
            device_type: self.device_type.clone(),
            num_tasks: self.devices_per_task().len() as i32,
            communicator_key: Default::default(),
            device_attributes: self.members.clone(),
        }
    }

    pub(crate) fn from_proto(answer: CompleteGroupResponse) -> Result<Group> {
        if usize::try_from(answer.group_size).ok() != Some(answer.device_attributes.len()) {
            return Err(internal!(
                "CompleteGroupResponse group_size doesn't match device_name list"
            ));
        }
        Ok(Group {
            key: answer.group_key,
            device_type: answer.device_type,
            members: answer.device_attributes,
        })
    }
}

fn check_size(key: i32, known: usize, size: usize, device: &DeviceAttributes) -> Result<()> {
    match known == size {
        true => Ok(()),
        false => Err(internal!(
            "Device {} is joining a group with size{size}, but that group has size {known} \
             (group_key={key})",
            device.name
        )),
    }
}

fn check_incarnation(member: &DeviceAttributes, device: &DeviceAttributes) -> Result<()> {
    match member.incarnation == device.incarnation {
        true => Ok(()),
        false => Err(failed_precondition!(
            "Device {} current incarnation doesn't match with one in the group. This usually means \
             this worker has restarted but the collective leader hasn't, or this worker connects to \
             a wrong cluster.",
            device.name
        )),
    }
}

/// A device that joins a group.
struct Joining {
    size: usize,
    device_type: String,
    device: DeviceAttributes,
    /// The rank that it asks for.
    rank: Option<i32>,
}

/// The members of a complete group in the order of their ranks: those that all ask for, else that of the devices.
///
/// # Errors
/// INVALID_ARGUMENT if two ask for the same rank, or one for a rank that the group does not have.
fn ranked(mut members: Vec<(DeviceAttributes, Option<i32>)>) -> Result<Vec<DeviceAttributes>> {
    members.sort_unstable_by(|(a, _), (b, _)| compare_names(&a.name, &b.name));
    let asked: Option<Vec<i32>> = members.iter().map(|(_, rank)| *rank).collect();
    if let Some(mut ranks) = asked {
        let shown: Vec<String> = ranks.iter().map(i32::to_string).collect();
        ranks.sort_unstable();
        if !ranks.iter().copied().eq(0..members.len() as i32) {
            return Err(invalid_argument!(
                "Duplicate ranks specified for group members. Received ranks: {}",
                shown.join(",")
            ));
        }
        members.sort_unstable_by_key(|(_, rank)| *rank);
    }
    Ok(members.into_iter().map(|(device, _)| device).collect())
}

/// A group that devices join.
enum Record {
    Open {
        size: usize,
        device_type: String,
        members: Vec<(DeviceAttributes, Option<i32>)>,
        waiting: Vec<oneshot::Sender<Result<Arc<Group>>>>,
    },
    Complete(Arc<Group>),
    Failed(Status),
}

/// The groups by key. A group never changes once it is complete.
#[derive(Default)]
pub(crate) struct Groups(Mutex<HashMap<i32, Record>>);

impl Groups {
    /// The group of this key if it is complete.
    ///
    /// # Errors
    /// INTERNAL or FAILED_PRECONDITION if the device is not a member.
    pub(crate) fn complete(
        &self,
        key: i32,
        size: usize,
        device: &DeviceAttributes,
    ) -> Result<Option<Arc<Group>>> {
        match lock(&self.0).get(&key) {
            Some(Record::Complete(group)) => {
                group.check(size, device)?;
                Ok(Some(group.clone()))
            }
            Some(Record::Failed(error)) => Err(error.clone()),
            _ => Ok(None),
        }
    }

    /// The group of this key.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is not complete.
    pub(crate) fn find(&self, key: i32) -> Result<Arc<Group>> {
        match lock(&self.0).get(&key) {
            Some(Record::Complete(group)) => Ok(group.clone()),
            Some(Record::Failed(error)) => Err(error.clone()),
            Some(Record::Open { .. }) => Err(failed_precondition!(
                "group {key} failed to resolve. This normally means the server has restarted"
            )),
            None => Err(failed_precondition!(
                "group {key} not found. This normally means the server has restarted"
            )),
        }
    }

    /// Adds a group that the leader knows.
    pub(crate) fn insert(&self, group: Arc<Group>) {
        lock(&self.0).insert(group.key, Record::Complete(group));
    }

    /// Joins a group and waits for its other members.
    ///
    /// # Errors
    /// INTERNAL if the request lacks a device, or the size or the kind of device differs from that of other members, or
    /// the group is full;
    /// FAILED_PRECONDITION if the device has restarted since it joined. The error is that of all members.
    pub(crate) async fn join(&self, request: CompleteGroupRequest) -> Result<Arc<Group>> {
        let device = request.device_attributes.ok_or_else(|| {
            internal!(
                "CompleteGroupRequest device_attributes is not set. Make sure you're running the same version of \
                 Tensorflow on all workers."
            )
        })?;
        let size = usize::try_from(request.group_size).ok().filter(|n| *n > 0);
        let size = size.ok_or_else(|| {
            invalid_argument!(
                "group_size must be positive integer but got {}",
                request.group_size
            )
        })?;
        let (key, rank) = (request.group_key, request.rank);
        if rank.is_some_and(|rank| usize::try_from(rank).map_or(true, |rank| rank >= size)) {
            return Err(invalid_argument!(
                "User Provided rank is invalid. It should be between [0, group_size)"
            ));
        }
        if let Some(group) = self.complete(key, size, &device)? {
            return Ok(group);
        }
        let (sender, receiver) = oneshot::channel();
        let joining = Joining {
            size,
            device_type: request.device_type,
            device,
            rank,
        };
        self.enter(key, joining, sender);
        let left = |_| internal!("the group {key} was reset");
        receiver.await.map_err(left)?
    }

    fn enter(&self, key: i32, joining: Joining, sender: oneshot::Sender<Result<Arc<Group>>>) {
        let mut groups = lock(&self.0);
        let record = groups.entry(key).or_insert_with(|| Record::Open {
            size: joining.size,
            device_type: joining.device_type.clone(),
            members: Vec::new(),
            waiting: Vec::new(),
        });
        let Record::Open {
            size,
            device_type,
            members,
            waiting,
        } = record
        else {
            // Completed since the caller looked.
            let known = match record {
                Record::Complete(group) => {
                    let checked = group.check(joining.size, &joining.device);
                    checked.map(|()| group.clone())
                }
                Record::Failed(error) => Err(error.clone()),
                Record::Open { .. } => Err(internal!("the group {key} is open")),
            };
            drop(groups);
            // A member that hung up has no use for it.
            let _ = sender.send(known);
            return;
        };
        waiting.push(sender);
        let device = &joining.device;
        let known = members.iter().find(|(m, _)| m.name == device.name);
        let checked = match *device_type == joining.device_type {
            false => Err(internal!(
                "Device {} is joining a group with incompatible device type{device_type} \
                 (group_key={key})",
                device.name
            )),
            true => check_size(key, *size, joining.size, device),
        };
        let checked = checked.and_then(|()| match known {
            Some((member, _)) => check_incarnation(member, device).map(|()| false),
            None => Ok(true),
        });
        let result = match checked {
            Ok(is_new) => {
                if is_new {
                    members.push((joining.device, joining.rank));
                }
                if members.len() < *size {
                    return;
                }
                let device_type = std::mem::take(device_type);
                ranked(std::mem::take(members)).map(|members| {
                    Arc::new(Group {
                        key,
                        device_type,
                        members,
                    })
                })
            }
            Err(error) => Err(error),
        };
        let waiting = std::mem::take(waiting);
        *record = match &result {
            Ok(group) => Record::Complete(group.clone()),
            Err(error) => Record::Failed(error.clone()),
        };
        drop(groups);
        for waiter in waiting {
            let _ = waiter.send(result.clone());
        }
    }

    /// Forgets all groups; waiting members get an error.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}

/// Compares names of devices as TensorFlow does: by job, task and number.
fn compare_names(a: &str, b: &str) -> Ordering {
    let key = |name: &str| {
        let task = TaskName::of_device(name);
        let number = name.rsplit(':').next().and_then(|n| n.parse::<u64>().ok());
        (task, number)
    };
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

/// A collective whose members are arriving or, later, have arrived, at the leader.
struct Instance {
    kind: i32,
    data_type: i32,
    shape: Vec<i64>,
    arrived: Vec<String>,
    source: Option<usize>,
    waiting: Vec<oneshot::Sender<Result<usize>>>,
    /// Why the collective failed, of which members that come later learn.
    failed: Option<Status>,
}

/// The collectives by group and instance. As in TensorFlow they stay for later steps, whose members may
/// not ask again.
#[derive(Default)]
pub(crate) struct Instances(Mutex<HashMap<(i32, i32), Instance>>);

impl Instance {
    /// Whether a request begins another collective under the same keys: after all members of the last one
    /// have arrived, or once it has failed.
    fn is_over(
        &self,
        request: &CompleteInstanceRequest,
        dims: &[i64],
        rank: usize,
        n: usize,
    ) -> bool {
        let is_same = (self.kind, self.data_type) == (request.r#type, request.data_type)
            && self.shape == dims
            && request.is_source == (self.source == Some(rank));
        match self.failed {
            Some(_) => self.arrived.contains(&request.device),
            None => self.arrived.len() >= n && !is_same,
        }
    }

    /// Checks a member against those that came before.
    fn join(
        &mut self,
        request: &CompleteInstanceRequest,
        dims: &[i64],
        rank: usize,
        is_new: bool,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if (self.kind, self.data_type) != (request.r#type, request.data_type) {
            return Err(internal!(
                "Collective instance {} expected type {} and data_type {} but got type {} and \
                 data_type {}",
                request.instance_key,
                self.kind,
                self.data_type,
                request.r#type,
                request.data_type
            ));
        }
        if self.shape != dims {
            return Err(shape_mismatch(request, dims, &self.shape));
        }
        if is_new
            && request.is_source
            && let Some(other) = self.source.replace(rank)
        {
            return Err(internal!(
                "Instance {} already has source {other}, received second claim from {rank}",
                request.instance_key
            ));
        }
        Ok(())
    }
}

impl Instance {
    /// Tells the members of a broadcast the rank of the source.
    fn finish(&mut self, key: i32) {
        let source = self.source.ok_or_else(|| {
            internal!(
                "Instance {key} found no source for broadcast.  This could mean that there were \
                 group_size={} BcastRecvs but no BcastSend.",
                self.arrived.len()
            )
        });
        self.failed = source.as_ref().err().cloned();
        for waiter in self.waiting.drain(..) {
            // A member that hung up has no use for it.
            let _ = waiter.send(source.clone());
        }
    }
}

/// What a member learns when it arrives.
enum Arrival {
    /// The rank of the source, of a broadcast.
    Known(Option<usize>),
    Waiting(oneshot::Receiver<Result<usize>>),
}

impl Instances {
    /// Checks a member against the others and returns the source's rank, of a broadcast once all members
    /// have arrived.
    ///
    /// # Errors
    /// INTERNAL if the members run different collectives, or a broadcast has no source or two;
    /// INVALID_ARGUMENT if their shapes differ.
    pub(crate) async fn complete(
        &self,
        group: &Group,
        request: &CompleteInstanceRequest,
    ) -> Result<Option<usize>> {
        let receiver = match self.arrive(group, request)? {
            Arrival::Known(source) => return Ok(source),
            Arrival::Waiting(receiver) => receiver,
        };
        let left = |_| internal!("the step ended before all members arrived");
        receiver.await.map_err(left)?.map(Some)
    }

    fn arrive(&self, group: &Group, request: &CompleteInstanceRequest) -> Result<Arrival> {
        let key = (request.group_key, request.instance_key);
        let shape = request.shape.as_ref();
        let dims = shape.map(|s| s.dim.iter().map(|d| d.size).collect());
        let dims: Vec<i64> = dims.unwrap_or_default();
        let rank = group.rank(&request.device)?;
        let n = group.members.len();
        let mut instances = lock(&self.0);
        let known = instances.get(&key);
        if known.is_some_and(|known| known.is_over(request, &dims, rank, n)) {
            instances.remove(&key);
        }
        let instance = instances.entry(key).or_insert_with(|| Instance {
            kind: request.r#type,
            data_type: request.data_type,
            shape: dims.clone(),
            arrived: Vec::new(),
            source: None,
            waiting: Vec::new(),
            failed: None,
        });
        let is_new = !instance.arrived.contains(&request.device);
        if is_new {
            instance.arrived.push(request.device.clone());
        }
        let joined = instance.join(request, &dims, rank, is_new);
        if let Err(error) = &joined {
            instance.failed = Some(error.clone());
            for waiter in instance.waiting.drain(..) {
                // A member that hung up has no use for it.
                let _ = waiter.send(Err(error.clone()));
            }
        }
        joined?;
        let is_complete = instance.arrived.len() >= n;
        match request.r#type == BROADCAST {
            false => Ok(Arrival::Known(None)),
            true if is_complete && !is_new => Ok(Arrival::Known(instance.source)),
            true => {
                let (sender, receiver) = oneshot::channel();
                instance.waiting.push(sender);
                if is_complete {
                    instance.finish(request.instance_key);
                }
                Ok(Arrival::Waiting(receiver))
            }
        }
    }

    /// Forgets all collectives.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}

fn shape_mismatch(request: &CompleteInstanceRequest, ours: &[i64], theirs: &[i64]) -> Status {
    let text = |dims: &[i64]| {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        format!("[{}]", dims.join(","))
    };
    invalid_argument!(
        "Shape mismatch in the collective instance {}. Op at device {} expected shape {} but another \
         member in the group expected shape {}. This is likely due to different input shapes at \
         different members of the collective op.",
        request.instance_key,
        request.device,
        text(ours),
        text(theirs)
    )
}
