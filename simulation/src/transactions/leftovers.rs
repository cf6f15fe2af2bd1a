//! T7: attempts that did not commit leave nothing that a log announces.
//!
//! Two things may stay until there is a sweep, and are not counted: versions that no slot announces, because a death
//! cut their round one in two, and the row of a named begin whose slot was lost so.

use transactions::Figures;

use super::{
    at_rest::{AtRest, Decision},
    history::Writer,
};

/// Versions of attempts that were announced and did not commit; announced attempts of which nothing was decided;
/// rows of announced begins that nobody gave back.
pub fn leftovers(at_rest: &AtRest) -> Vec<String> {
    let mut violations = Vec::new();
    for ((key, attempt), item) in &at_rest.versions {
        let writer = Writer { id: item.id.clone(), attempt: *attempt };
        if at_rest.announced.contains_key(attempt) && !at_rest.is_committed(&writer) {
            violations.push(format!("{writer:?} did not commit and left a version of {key:?}"));
        }
    }
    for (attempt, id) in &at_rest.announced {
        let is_undecided = match at_rest.rows.get(id) {
            Some(row) => row.attempt == *attempt && row.decision == Decision::Undecided,
            // Of a name, the row may have been given back.
            None => id.generated().is_some(),
        };
        if is_undecided {
            violations.push(format!("{id:?} was announced as {attempt} and never decided"));
        }
    }
    for (id, row) in &at_rest.rows {
        if row.decision == Decision::Undecided && at_rest.began.contains(&row.attempt) {
            violations.push(format!("{id:?} has ended, and left the row that its begin took"));
        }
    }
    violations
}

/// What a node holds of transactions although none is open.
pub fn held(figures: &Figures) -> Vec<String> {
    match (figures.open, figures.buffered_bytes) {
        (0, 0) => Vec::new(),
        (open, buffered) => vec![format!("{open} attempts are open and {buffered} bytes are buffered")],
    }
}

#[cfg(test)]
mod tests {
    use transactions::model::{Attempt, Key, NodeId, TransactionId};

    use super::*;
    use crate::transactions::at_rest::{Row, VersionAtRest};

    const ATTEMPT: Attempt = Attempt { node: NodeId(1), sequence: 1 };

    fn one_version(row: Option<Decision>, is_announced: bool) -> AtRest {
        let (attempt, id) = (ATTEMPT, TransactionId::new("t").expect("a name"));
        let mut at_rest = AtRest::default();
        let version = VersionAtRest { id: id.clone(), value: None };
        at_rest.versions.insert((Key::new("k").expect("short"), attempt), version);
        at_rest.rows.extend(row.map(|decision| (id.clone(), Row { attempt, decision })));
        at_rest.announced.extend(is_announced.then_some((attempt, id.clone())));
        at_rest
    }

    /// T7.
    #[test]
    fn what_a_closed_attempt_left_is_found() {
        assert_eq!(leftovers(&one_version(Some(Decision::Closed), true)).len(), 1);
        assert_eq!(leftovers(&one_version(None, true)).len(), 1);
        assert_eq!(leftovers(&one_version(Some(Decision::Undecided), true)).len(), 2);
        for row in [None, Some(Decision::Closed)] {
            assert_eq!(leftovers(&one_version(row, false)).len(), 0, "it waits for the sweep");
        }
        let mut at_rest = one_version(Some(Decision::Undecided), false);
        at_rest.began.insert(ATTEMPT);
        assert_eq!(leftovers(&at_rest).len(), 1, "nobody gave the row back");
        let mut at_rest = AtRest::default();
        at_rest.announced.insert(ATTEMPT, TransactionId::generate(ports::Timestamp(1), ATTEMPT, 1));
        assert_eq!(leftovers(&at_rest).len(), 1, "nobody has closed it");
        assert_eq!(held(&Figures { open: 1, ..Figures::default() }).len(), 1);
        assert!(held(&Figures::default()).is_empty());
    }
}
