//! A queue that knows its size in bytes, so that producers can be held back at a bound.
//!
//! A request or an answer may take a hundred bytes or a million, so memory per client is bounded in
//! bytes. Each item's size is measured when it enters the queue.

use std::collections::VecDeque;

/// Approximate size of an item besides its paths and data, in bytes.
pub(crate) const ITEM_BYTES: usize = 128;

/// A queue of items with their sizes.
#[derive(Debug)]
pub(crate) struct Backlog<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<T> Backlog<T> {
    /// Total size in bytes, with [`ITEM_BYTES`] for each item.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Frees the memory of an empty queue, because most clients are idle.
    pub(crate) fn release_unused(&mut self) {
        if self.items.is_empty() {
            self.items = VecDeque::new();
        }
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.items.front().map(|(_, item)| item)
    }

    pub(crate) fn back(&self) -> Option<&T> {
        self.items.back().map(|(_, item)| item)
    }

    /// From the oldest to the newest.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.items.iter().map(|(_, item)| item)
    }

    /// Inserts an item before the one at `index`.
    pub(crate) fn insert(&mut self, index: usize, bytes: usize, item: T) {
        self.bytes += ITEM_BYTES + bytes;
        self.items.insert(index, (ITEM_BYTES + bytes, item));
    }

    pub(crate) fn pop_back(&mut self) -> Option<T> {
        let (bytes, item) = self.items.pop_back()?;
        self.bytes -= bytes;
        Some(item)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index).map(|(_, item)| item)
    }

    /// Adds an item whose paths and data take this many bytes.
    pub(crate) fn push_back(&mut self, bytes: usize, item: T) {
        self.bytes += ITEM_BYTES + bytes;
        self.items.push_back((ITEM_BYTES + bytes, item));
    }

    /// Returns an item to the front.
    pub(crate) fn push_front(&mut self, bytes: usize, item: T) {
        self.bytes += ITEM_BYTES + bytes;
        self.items.push_front((ITEM_BYTES + bytes, item));
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.pop_front_if(|_| true)
    }

    pub(crate) fn pop_front_if(&mut self, is_due: impl FnOnce(&T) -> bool) -> Option<T> {
        let (bytes, item) = self.items.pop_front_if(|(_, item)| is_due(item))?;
        self.bytes -= bytes;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_count_until_they_leave_in_order() {
        let mut backlog = Backlog::default();
        backlog.push_back(10, 'b');
        backlog.push_back(1000, 'c');
        backlog.push_front(1, 'a');
        assert_eq!((backlog.len(), backlog.bytes()), (3, 1011 + 3 * ITEM_BYTES));
        assert_eq!(backlog.pop_front_if(|item| *item == 'b'), None);
        assert_eq!(backlog.pop_front(), Some('a'));
        assert_eq!(backlog.pop_front_if(|item| *item == 'b'), Some('b'));
        assert_eq!(
            (backlog.front(), backlog.bytes()),
            (Some(&'c'), 1000 + ITEM_BYTES)
        );
        assert_eq!(backlog.pop_front(), Some('c'));
        assert_eq!(
            (backlog.pop_front(), backlog.bytes(), backlog.is_empty()),
            (None, 0, true)
        );
        backlog.push_back(1, 'a');
        backlog.push_back(1, 'c');
        backlog.insert(1, 10, 'b');
        assert_eq!(backlog.iter().collect::<String>(), "abc");
        assert_eq!(backlog.back(), Some(&'c'));
        assert_eq!(backlog.pop_back(), Some('c'));
        assert_eq!((backlog.len(), backlog.bytes()), (2, 11 + 2 * ITEM_BYTES));
        backlog.release_unused();
        assert_eq!(backlog.iter().collect::<String>(), "ab");
        while backlog.pop_front().is_some() {}
        backlog.release_unused();
        assert_eq!(backlog.items.capacity(), 0);
    }
}
