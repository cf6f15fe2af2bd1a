//! The problem for each error of a service.

use files::Errno;

use super::{Kind, Problem};

impl From<transactions::Error> for Problem {
    fn from(error: transactions::Error) -> Self {
        use transactions::Error as E;

        let kind = match &error {
            E::Invalid(_) => Kind::InvalidRequest,
            E::TooLarge(_) => Kind::TooLarge,
            E::TooManyOpen => Kind::TooManyTransactions,
            E::TooMuchBuffered => Kind::TooMuchBuffered,
            E::NoSuchTransaction => Kind::NoSuchTransaction,
            E::NoSuchQueue => Kind::NoSuchQueue,
            E::NoSuchFunction => Kind::NoSuchFunction,
            E::TransactionFinished(_) => Kind::TransactionFinished,
            E::Conflict => Kind::Conflict,
            E::SnapshotTooOld => Kind::SnapshotTooOld,
            E::NoValidVersion => Kind::NoValidVersion,
            E::Expired => Kind::Expired,
            E::OutcomeUnknown => Kind::OutcomeUnknown,
            E::NoSuchVolume => Kind::NoSuchVolume,
            E::VolumeExists => Kind::VolumeExists,
            E::VolumeInUse => Kind::VolumeInUse,
            E::NoRoom => Kind::NoRoom,
            E::Corrupt(why) => {
                tracing::error!(%why, "http: a call found damage in the store");
                Kind::Corrupt
            }
            // This front end does not know every future error, and cannot serve those.
            _ => Kind::Unavailable,
        };
        let outcome = match &error {
            E::TransactionFinished(outcome) => Some(*outcome),
            _ => None,
        };
        Self {
            outcome,
            ..Self::new(kind, error.to_string())
        }
    }
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        use Errno as E;

        let kind = match errno {
            E::ENOENT => Kind::NoSuchFile,
            E::EINVAL | E::ENAMETOOLONG | E::ERANGE => Kind::InvalidRequest,
            E::EFBIG | E::E2BIG => Kind::TooLarge,
            E::ENOSPC => Kind::NoRoom,
            E::EDQUOT => Kind::QuotaExceeded,
            E::ESTALE => Kind::SnapshotTooOld,
            E::EIO => Kind::Unavailable,
            _ => Kind::FileConflict,
        };
        Self {
            code: Some(errno),
            ..Self::new(kind, errno.to_string())
        }
    }
}

impl From<functions::Error> for Problem {
    fn from(error: functions::Error) -> Self {
        use functions::Error as E;

        let kind = match &error {
            E::NoSuchFunction(_) => Kind::NoSuchFunction,
            E::NoSuchApplication(_) => Kind::NoSuchApplication,
            E::NoSuchDeadLetter(_) => Kind::NoSuchDeadLetter,
            E::NoSuchQueue(_) => Kind::NoSuchQueue,
            E::Invalid(_) => Kind::InvalidRequest,
            E::TooLarge(_) => Kind::TooLarge,
            E::Conflict(_) => Kind::DeploymentConflict,
            E::Stopped => Kind::ServerStopped,
            E::Port(port) => of_port(port),
            // This front end does not know every future error, and cannot serve those.
            _ => Kind::Unavailable,
        };
        Self::new(kind, with_causes(&error))
    }
}

impl From<workflows::Error> for Problem {
    fn from(error: workflows::Error) -> Self {
        use workflows::Error as E;

        let kind = match error {
            E::State(error) => return error.into(),
            E::OutcomeUnknown { ref run, .. } => {
                return Self {
                    id: Some(run.clone()),
                    ..Self::new(Kind::OutcomeUnknown, error.to_string())
                };
            }
            E::Stopped(ref run) => {
                return Self {
                    id: Some(run.clone()),
                    ..Self::new(Kind::ServerStopped, error.to_string())
                };
            }
            E::NoSuchWorkflow(_) => Kind::NoSuchWorkflow,
            E::NoSuchRun(_) => Kind::NoSuchRun,
            E::Invalid(_) => Kind::InvalidRequest,
            E::TooLarge(_) => Kind::TooLarge,
            E::TooManyRuns => Kind::TooManyRuns,
            E::InputDiffers(_) => Kind::RunInputDiffers,
            E::AttemptEnded | E::RunEnded => Kind::AttemptEnded,
            E::Port(ref port) => of_port(port),
            // This front end does not know every future error, and cannot serve those.
            _ => Kind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

fn of_port(error: &ports::Error) -> Kind {
    match error.kind() {
        ports::ErrorKind::Invalid => Kind::InvalidRequest,
        ports::ErrorKind::NoRoom => Kind::NoRoom,
        ports::ErrorKind::OutcomeUnknown => Kind::OutcomeUnknown,
        ports::ErrorKind::Corrupt => Kind::Corrupt,
        _ => Kind::Unavailable,
    }
}

/// The error and its causes. An error that already contains its cause's text says it once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut said: Vec<_> = causes.map(ToString::to_string).collect();
    said.dedup_by(|cause, before| before.ends_with(cause.as_str()));
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = std::io::Error::other("\"py/evil\" points outside of it");
        let error =
            ports::Error::new(ports::ErrorKind::Invalid, "unpack the archive").caused_by(cause);
        let said = with_causes(&error);
        assert_eq!(said.matches("points outside of it").count(), 1, "{said}");
    }
}
