//! What a client has committed, carried to its next transaction.
//!
//! A commit answers a token. Sent with the next begin, it makes whichever node takes that begin wait until it
//! knows the commit, so a client that changes nodes sees its own writes. The token is opaque and two of them cannot
//! be compared here, so each handle of a client carries its own last one: a clone begins with what its original
//! had heard, and goes its own way.

use std::sync::{Mutex, PoisonError};

const TOKEN_CHARACTERS_MAX: usize = 1024;

/// The last token that one handle of a client has heard.
#[derive(Debug, Default)]
pub(crate) struct After(Mutex<Option<String>>);

impl After {
    pub(crate) fn token(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Keeps what a commit answered; anything that cannot go into a header is no token.
    pub(crate) fn heard(&self, token: Option<String>) -> Option<String> {
        let token = token.filter(|token| {
            let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
            is_visible && (1..=TOKEN_CHARACTERS_MAX).contains(&token.len())
        })?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Some(token)
    }
}

impl Clone for After {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.token()))
    }
}
