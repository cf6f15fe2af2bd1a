//! Work for the case that a call is dropped before its response.

/// Runs its function when it is dropped, unless the response came before.
pub(crate) struct Unanswered<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Unanswered<F> {
    pub(crate) fn then(given_up: F) -> Self {
        Self(Some(given_up))
    }

    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Unanswered<F> {
    fn drop(&mut self) {
        if let Some(given_up) = self.0.take() {
            given_up();
        }
    }
}
