//! The error that the program prints when it cannot go on.

pub(crate) fn line(error: &anyhow::Error) -> String {
    format!("landfast: {}\n", of(error))
}

/// An error with its causes, each once: the text of many errors already contains their cause.
pub(crate) fn of(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |said, cause| {
            if said.is_empty() {
                cause
            } else if said.contains(&cause) {
                said
            } else {
                said + ": " + &cause
            }
        })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_said_once_whoever_says_it() {
        let error = anyhow!("no such file")
            .context("read a: no such file; look for it")
            .context("--config a");
        assert_eq!(
            super::of(&error),
            "--config a: read a: no such file; look for it"
        );
        assert_eq!(super::of(&anyhow!("cause").context("what")), "what: cause");
    }
}
