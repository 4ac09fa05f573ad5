//! [`Transfer`]: how a member of a group reaches the others.

use super::buffers::StepBuffers;
use super::carrier::{Buffer, Carrier};
use super::groups::Group;
use crate::device::{TaskName, random_id};
use crate::peers::Peers;
use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_model::proto::{Any, RecvBufRequest, RecvBufRespExtra, RecvBufResponse};
use ferroflow_tensor::{DType, Shape, Tensor};
use prost::Message;
use std::sync::Arc;

/// The type of the options of a RecvBufResponse.
const EXTRA_TYPE: &str = "type.googleapis.com/tensorflow.RecvBufRespExtra";

/// A member of a group in one collective.
pub(crate) struct Transfer {
    pub(crate) group: Arc<Group>,
    /// The member's rank.
    pub(crate) rank: usize,
    /// What the keys of all buffers begin with.
    pub(crate) key: String,
    pub(crate) step: i64,
    pub(crate) buffers: Arc<StepBuffers>,
    pub(crate) dtype: DType,
    pub(crate) peers: Arc<Peers>,
    /// This task.
    pub(crate) own: TaskName,
    /// What carries buffers to the tasks that it reaches.
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
}

impl Transfer {
    /// The task of a member.
    fn task(&self, rank: usize) -> Result<TaskName> {
        let member = &self.group.members[rank].name;
        let task = TaskName::of_device(member);
        task.ok_or_else(|| internal!("device {member} has no task"))
    }

    /// What carries buffers between this task and another one.
    fn carrier(&self, task: &TaskName) -> Option<&Arc<dyn Carrier>> {
        let reaches = |carrier: &&Arc<dyn Carrier>| *task != self.own && carrier.reaches(task);
        self.carrier.as_ref().filter(reaches)
    }

    /// Sends a tensor to the member `to`, and waits until it is taken.
    ///
    /// # Errors
    /// UNAVAILABLE if it cannot be reached; what ended its step.
    pub(crate) async fn send(&self, to: usize, key: &str, tensor: Tensor) -> Result<()> {
        let task = self.task(to)?;
        let Some(carrier) = self.carrier(&task) else {
            return self.buffers.send(key, tensor).await;
        };
        let buffer = Buffer {
            step: self.step,
            key: key.to_string(),
            tensor,
        };
        let sent = carrier.send(&task, buffer).await;
        sent.map_err(|_| Status::new(Code::Unavailable, format!("{task} is not reached any more")))?
    }

    /// Receives `n` elements that the member `from` sends.
    ///
    /// # Errors
    /// INTERNAL if it sends another number of bytes; UNAVAILABLE if it cannot be reached; what ended its
    /// step.
    pub(crate) async fn recv(&self, from: usize, key: &str, n: usize) -> Result<Tensor> {
        let members = &self.group.members;
        let (source, own) = (&members[from], &members[self.rank]);
        let task = self.task(from)?;
        let expected = n * self.dtype.size();
        if let Some(carrier) = self.carrier(&task) {
            let _expected = carrier.expect();
            let bytes = self.buffers.carried(key).await?;
            return match bytes.len() == expected {
                true => Tensor::from_bytes(self.dtype, Shape::from(&[n][..]), &bytes),
                false => Err(size_mismatch(bytes.len(), expected)),
            };
        }
        if task == self.own {
            let tensor = self.buffers.recv(key).await?;
            return match (tensor.num_elements(), tensor.dtype()) == (n, self.dtype) {
                true => Ok(tensor),
                false => Err(size_mismatch(tensor.byte_len(), expected)),
            };
        }
        let request = RecvBufRequest {
            step_id: self.step,
            buf_rendezvous_key: key.to_string(),
            num_bytes: expected as i64,
            src_device: source.name.clone(),
            src_incarnation: source.incarnation,
            dst_device: own.name.clone(),
            request_id: random_id(),
            ..Default::default()
        };
        let peer = self.peers.get(&task)?;
        if peer.link.is_known() && !peer.link.is_open() {
            // A link that cannot be opened is not known any more.
            drop(peer.link.open().await);
        }
        if peer.link.is_open() {
            let received = peer.link.recv_buf(request, self.dtype).await;
            let tensor = received.map_err(|e| peer.lost("RecvBuf", &e))?;
            return match tensor.num_elements() == n {
                true => Ok(tensor),
                false => Err(size_mismatch(tensor.byte_len(), expected)),
            };
        }
        let answer: RecvBufResponse = peer.call("RecvBuf", request).await?;
        let options = answer.transport_options.unwrap_or_default();
        let extra = RecvBufRespExtra::decode(options.value);
        let extra = extra.map_err(|e| internal!("RecvBufRespExtra: {e}"))?;
        let parts = extra.tensor_content;
        let found = parts.iter().map(|p| p.len()).sum();
        if found != expected {
            return Err(size_mismatch(found, expected));
        }
        let shape = Shape::from(&[n][..]);
        match &parts[..] {
            [one] => Tensor::from_bytes(self.dtype, shape, one),
            many => Tensor::from_bytes(self.dtype, shape, &many.concat()),
        }
    }
}

/// The response that carries a tensor.
///
/// # Errors
/// INVALID_ARGUMENT if it is not plain.
pub(crate) fn response(tensor: &Tensor) -> Result<RecvBufResponse> {
    let bytes = tensor.bytes()?;
    let extra = RecvBufRespExtra {
        tensor_content: match bytes.is_empty() {
            true => Vec::new(),
            false => vec![bytes.to_vec().into()],
        },
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(RecvBufResponse {
        num_bytes: bytes.len() as i64,
        transport_options: Some(Any {
            type_url: EXTRA_TYPE.to_string(),
            value: extra.encode_to_vec().into(),
        }),
        send_start_micros: now.map_or(0, |t| t.as_micros() as i64),
        ..Default::default()
    })
}

pub(crate) fn size_mismatch(
    found: usize,
    expected: impl std::fmt::Display,
) -> ferroflow_base::Status {
    internal!("Tensor Size Mismatch: RecvBufResponse returned {found} bytes, expected: {expected}")
}
