//! A client's update as the writer's operation, and the writer's answer as the client's response.

use std::cmp::Ordering;

use crate::{
    Error,
    environment::Environment,
    model::{Connection, Request, Response},
    records::{Operation, Payload, UpdateAnswer},
    storage::temporary,
};

/// Paths up to this many bytes do not reduce the space for data in a message.
const PATH_BYTES_FREE: usize = 4 << 10;

/// The writer's operation for an update, or any other request unchanged.
pub(super) fn operation(request: Request) -> Result<Operation, Request> {
    Ok(match request {
        Request::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        } => Operation::Create {
            path,
            data: payload(data),
            acl,
            lifetime,
            naming,
        },
        Request::Delete { path, version } => Operation::Delete { path, version },
        Request::SetData {
            path,
            data,
            version,
        } => Operation::SetData {
            path,
            data: payload(data),
            version,
        },
        Request::SetAcl { path, acl, version } => Operation::SetAcl { path, acl, version },
        Request::Check { path, version } => Operation::Check { path, version },
        Request::Multi(parts) => {
            // The front end offers updates alone.
            let part = |part| operation(part).unwrap_or(Operation::Refuse(Error::Marshalling));
            Operation::Multi(parts.into_iter().map(part).collect())
        }
        Request::RefuseUpdate(error) => Operation::Refuse(error),
        Request::Close => Operation::Close,
        other => return Err(other),
    })
}

fn payload(data: Option<bytes::Bytes>) -> Payload {
    data.map_or(Payload::Null, Payload::Inline)
}

/// Moves data that does not fit into a message to temporary objects.
pub(super) async fn detach_payload(
    env: &Environment,
    client: Connection,
    request: u64,
    operation: &mut Operation,
) -> Result<(), ports::Error> {
    let whole = operation.bytes_len();
    let bytes_max = env.config.message_payload_bytes_max;
    let parts = match operation {
        Operation::Multi(parts) => parts.as_mut_slice(),
        operation => std::slice::from_mut(operation),
    };
    let is_multi = parts.len() > 1;
    for (number, part) in parts.iter_mut().enumerate() {
        let (Operation::Create { path, data, .. } | Operation::SetData { path, data, .. }) = part
        else {
            continue;
        };
        let Payload::Inline(bytes) = data else {
            continue;
        };
        // The message to the distributor contains the path three times.
        let beside = path.len().saturating_sub(PATH_BYTES_FREE) * 2;
        let is_large = bytes.len() + beside > bytes_max;
        let is_part_of_large = is_multi && whole > bytes_max && bytes.len() > PATH_BYTES_FREE;
        if !bytes.is_empty() && (is_large || is_part_of_large) {
            let (place, bytes) = ((&*env.parts.objects, env.timeline()), bytes.clone());
            *data = temporary::put(place, client, (request, number), bytes).await?;
        }
    }
    Ok(())
}

/// The response to a request that the writer answered.
pub(super) fn response(answer: UpdateAnswer) -> Response {
    match answer {
        UpdateAnswer::Created { path, stat } => Response::Created { path, stat },
        UpdateAnswer::Deleted => Response::Deleted,
        UpdateAnswer::Set(stat) => Response::Stat(stat),
        UpdateAnswer::Checked => Response::Checked,
        UpdateAnswer::Multi(answers) => {
            Response::Multi(answers.into_iter().map(response).map(Ok).collect())
        }
        UpdateAnswer::MultiFailed {
            failed,
            parts,
            error,
        } => Response::Multi(
            (0..parts)
                .map(|part| match part.cmp(&failed) {
                    Ordering::Less => Err(Error::NotDone),
                    Ordering::Equal => Err(error),
                    Ordering::Greater => Err(Error::NotAttempted),
                })
                .collect(),
        ),
        // Only `first_request` sees the answer of the attach.
        UpdateAnswer::Closed | UpdateAnswer::Attached => Response::Closed,
    }
}
