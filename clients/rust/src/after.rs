//! The client's last commit, carried to its next transaction.
//!
//! A commit returns a token. The next begin sends it, and the node that takes that begin waits
//! until it knows the commit. So a client that changes nodes sees its own writes. The token is
//! opaque, and the client cannot compare two of them. Each handle of a client therefore carries its
//! own last token: a clone begins with its original's token, and from then on keeps its own.

use std::sync::{Mutex, PoisonError};

const TOKEN_CHARACTERS_MAX: usize = 1024;

/// The last token that one handle of a client has received.
#[derive(Debug, Default)]
pub(crate) struct After(Mutex<Option<String>>);

impl After {
    pub(crate) fn token(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Keeps the token of a commit's response. A string that cannot go into a header is no token.
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
