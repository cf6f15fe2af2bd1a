//! The service's errors in S3's codes, and the refusals of this front end.
//!
//! A [`Refusal`] can travel through the service: a body that fails with one ends the call with
//! [`memory::Error::Body`], and the client still gets the refusal's own code.

use std::{fmt, io};

use http::StatusCode;
use memory::model::Conditions;
use s3s::{S3Error, S3ErrorCode};

/// A code of S3 with its status and a message that says what to do.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    code: &'static str,
    status: StatusCode,
    message: String,
}

impl Refusal {
    pub(crate) fn new(code: &'static str, status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            status,
            message,
        }
    }

    /// A refusal with status 400.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, StatusCode::BAD_REQUEST, message)
    }

    /// The body ended before its announced length.
    pub(crate) fn incomplete() -> Self {
        Self::bad(
            "IncompleteBody",
            "You did not provide the number of bytes specified by the Content-Length HTTP header.",
        )
    }

    /// As an error of a body.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for S3Error {
    fn from(refusal: Refusal) -> Self {
        let code = S3ErrorCode::from_bytes(refusal.code.as_bytes());
        let code = code.unwrap_or(S3ErrorCode::InternalError);
        let mut error = S3Error::with_message(code, refusal.message);
        error.set_status_code(refusal.status);
        error
    }
}

/// A request for something that this server does not have.
pub(crate) fn not_implemented(what: &str) -> S3Error {
    let message = format!("This server does not support {what}.");
    Refusal::new("NotImplemented", StatusCode::NOT_IMPLEMENTED, message).into()
}

/// A parameter has a value that S3 does not allow.
pub(crate) fn invalid_argument(message: impl Into<String>) -> S3Error {
    Refusal::bad("InvalidArgument", message).into()
}

/// The parameters do not fit together.
pub(crate) fn invalid_request(message: impl Into<String>) -> S3Error {
    Refusal::bad("InvalidRequest", message).into()
}

/// There is one version of each object, which S3 calls `null`.
///
/// Errors: `NoSuchVersion`.
pub(crate) fn no_versions(version: Option<&str>) -> Result<(), S3Error> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(Refusal::new(
            "NoSuchVersion",
            StatusCode::NOT_FOUND,
            "The version ID specified in the request does not match an existing version.",
        )
        .into()),
    }
}

/// The error of a call of the service.
pub(crate) fn from_service(error: memory::Error) -> S3Error {
    use memory::Error;
    match error {
        Error::Body(source) => from_body(&source),
        Error::TooLarge(what) if what.contains("key") => {
            Refusal::bad("KeyTooLongError", "Your key is too long.").into()
        }
        Error::InvalidPart(number) => Refusal::bad(
            "InvalidPart",
            format!("Part {number} was not uploaded, or its ETag is another one."),
        )
        .into(),
        Error::PartTooSmall(number) => Refusal::bad(
            "EntityTooSmall",
            format!("Part {number} is smaller than 5 MiB, the minimum of all parts but the last."),
        )
        .into(),
        error => of_kind(&error).into(),
    }
}

/// The error of a write that may have conditions. Clients repeat a `SlowDown` by themselves.
pub(crate) fn from_write(error: memory::Error, conditions: &Conditions) -> S3Error {
    match error {
        memory::Error::Contended if *conditions == Conditions::default() => Refusal::new(
            "SlowDown",
            StatusCode::SERVICE_UNAVAILABLE,
            "Other changes of the same object came first, again and again. Try again.",
        )
        .into(),
        error => from_conditional(error),
    }
}

/// The error of a write with conditions: S3 has a code of its own for a lost race.
pub(crate) fn from_conditional(error: memory::Error) -> S3Error {
    match error {
        memory::Error::Contended => Refusal::new(
            "ConditionalRequestConflict",
            StatusCode::CONFLICT,
            "Another change of this object won while yours was in progress. Read it and try again.",
        )
        .into(),
        error => from_service(error),
    }
}

fn of_kind(error: &memory::Error) -> Refusal {
    use memory::Error;
    let not_found = |code, message| Refusal::new(code, StatusCode::NOT_FOUND, message);
    let conflict = |code, message| Refusal::new(code, StatusCode::CONFLICT, message);
    match error {
        Error::NoSuchBucket => not_found("NoSuchBucket", "The specified bucket does not exist."),
        Error::NoSuchObject => not_found("NoSuchKey", "The specified key does not exist."),
        Error::NoSuchUpload => not_found(
            "NoSuchUpload",
            "The specified upload does not exist. It may have been aborted or completed.",
        ),
        Error::BucketExists => conflict(
            "BucketAlreadyOwnedByYou",
            "Your previous request to create the named bucket succeeded and you already own it.",
        ),
        Error::BucketNotEmpty => conflict(
            "BucketNotEmpty",
            "The bucket still has objects or uploads. Delete the objects and abort the uploads first.",
        ),
        Error::Contended => conflict(
            "OperationAborted",
            "Other changes of the same object came first, again and again. Try again.",
        ),
        Error::InvalidPartOrder => Refusal::bad(
            "InvalidPartOrder",
            "The list of parts was not in ascending order by part number.",
        ),
        Error::ConditionFailed => Refusal::new(
            "PreconditionFailed",
            StatusCode::PRECONDITION_FAILED,
            "At least one of the pre-conditions you specified did not hold.",
        ),
        Error::TooLarge(what) => Refusal::bad("EntityTooLarge", format!("Too large: {what}.")),
        other => of_trouble(other),
    }
}

/// The errors that an operator must know of.
fn of_trouble(error: &memory::Error) -> Refusal {
    match error {
        memory::Error::NoRoom(why) => {
            tracing::warn!(%why, "s3: no room for a write; free disk space or delete objects; reads go on");
            Refusal::new(
                "SlowDown",
                StatusCode::SERVICE_UNAVAILABLE,
                "The store is full. The server's operator must free space before writes work again.",
            )
        }
        memory::Error::Backlog(count) => {
            tracing::debug!(
                count,
                "s3: a change was refused: so many changes wait to become events"
            );
            Refusal::new(
                "SlowDown",
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many events of objects wait for their functions. Reduce your request rate.",
            )
        }
        memory::Error::Damaged(why) => {
            tracing::error!(%why, "s3: stored bytes are damaged; restore the object from its source");
            Refusal::new(
                "InternalError",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The stored object is damaged beyond repair. The server's log says where.",
            )
        }
        other => {
            tracing::warn!(error = %other, "s3: the stores cannot serve; check the store that `serve` uses");
            Refusal::new(
                "ServiceUnavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The stores cannot serve at the moment. Try again.",
            )
        }
    }
}

/// The error of a body that the service read: of its client, or of the object it is copied from.
fn from_body(source: &io::Error) -> S3Error {
    let inner = source.get_ref();
    if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<Refusal>()) {
        return refusal.clone().into();
    }
    if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<memory::Error>()) {
        return from_service(error.clone());
    }
    of_read(source).into()
}

/// The refusal for a body that could not be read from its connection.
pub(crate) fn of_read(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::TimedOut => Refusal::bad(
            "RequestTimeout",
            "Your socket connection to the server was not read from or written to within the timeout period.",
        ),
        io::ErrorKind::FileTooLarge => Refusal::bad(
            "EntityTooLarge",
            "Your proposed upload exceeds the maximum allowed size.",
        ),
        _ => Refusal::incomplete(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn code(error: memory::Error) -> String {
        from_service(error).code().as_str().to_owned()
    }

    #[test]
    fn a_refusal_keeps_its_code_through_the_service() {
        let refusal = Refusal::bad("BadDigest", "no match");
        let error = memory::Error::Body(Arc::new(refusal.into_io()));
        let error = from_service(error);
        assert_eq!(error.code().as_str(), "BadDigest");
        assert_eq!(error.status_code(), Some(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_copy_reports_the_error_of_its_source() {
        let source = io::Error::other(memory::Error::Damaged("unit 3".into()));
        assert_eq!(code(memory::Error::Body(Arc::new(source))), "InternalError");
    }

    #[test]
    fn a_slow_body_is_a_timeout_and_a_cut_one_is_incomplete() {
        let slow = io::Error::new(io::ErrorKind::TimedOut, "slow");
        assert_eq!(code(memory::Error::Body(Arc::new(slow))), "RequestTimeout");
        let cut = io::Error::other("reset");
        assert_eq!(code(memory::Error::Body(Arc::new(cut))), "IncompleteBody");
    }

    #[test]
    fn a_lost_race_has_its_own_code_in_a_conditional_write() {
        assert_eq!(code(memory::Error::Contended), "OperationAborted");
        let error = from_conditional(memory::Error::Contended);
        assert_eq!(error.code().as_str(), "ConditionalRequestConflict");
        assert_eq!(error.status_code(), Some(StatusCode::CONFLICT));
    }
}
