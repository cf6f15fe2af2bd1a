//! Keys beside the files of a volume.

use super::*;
use crate::{Errno, Ino, Outcome};

const LEDGER: Bytes = Bytes::from_static(b"balance/1");

#[test]
fn keys_take_effect_with_the_files_of_their_transaction() {
    simulated::run(async {
        let files = fresh().await;
        let mut pays = files.begin();
        assert_eq!(pays.get_key(&LEDGER).await, Ok(None));
        pays.put_key(&LEDGER, Some(name("70"))).expect("put");
        assert_eq!(pays.get_key(&LEDGER).await, Ok(Some(name("70"))));
        pays.create(Ino::ROOT, ACCESS, b"journal")
            .await
            .expect("created");
        refused(
            files.lookup(Ino::ROOT, &name("journal")).await,
            Errno::ENOENT,
        );
        let outcome = pays.commit(None, || true).await.expect("an outcome");
        assert!(matches!(outcome, Outcome::Committed { .. }));
        files
            .lookup(Ino::ROOT, &name("journal"))
            .await
            .expect("there");
        // No key is a file.
        let mut listing = crate::Listing::new(Ino::ROOT);
        let listed = files.list(&mut listing, 2, 9).await.expect("a page");
        assert_eq!(listed.len(), 1);
        let (mut first, mut second) = (files.begin(), files.begin());
        for transaction in [&mut first, &mut second] {
            assert_eq!(transaction.get_key(&LEDGER).await, Ok(Some(name("70"))));
            transaction.put_key(&LEDGER, None).expect("deleted");
        }
        let outcome = first.commit(None, || true).await.expect("an outcome");
        assert!(matches!(outcome, Outcome::Committed { .. }));
        let outcome = second.commit(None, || true).await.expect("an outcome");
        assert!(matches!(outcome, Outcome::Conflict { key: Some(_) }));
    });
}

#[test]
fn keys_and_values_have_their_limits() {
    simulated::run(async {
        let mut transaction = fresh().await.begin();
        let of = |bytes| Bytes::from(vec![b'k'; bytes]);
        refused(transaction.get_key(&of(481)).await, Errno::ENAMETOOLONG);
        refused(transaction.put_key(&of(481), None), Errno::ENAMETOOLONG);
        let value = Some(of((256 << 10) + 1));
        refused(transaction.put_key(&of(480), value), Errno::EFBIG);
        let value = Some(of(256 << 10));
        transaction.put_key(&of(480), value).expect("put");
    });
}

fn only_blocks_that_write_and_do_not_end_tear_their_transaction_of(mutant: Mutant<Broken>) {
    simulated::run(async move {
        let files = client(&volume(), 1, mutant).await;
        let (transaction, other) = (files.begin(), files.begin());
        let (mut written, idle) = (transaction.block(), transaction.block());
        assert!(written.is_of(&transaction) && !written.is_of(&other));
        drop(idle);
        assert!(!transaction.is_torn());
        written.write();
        written.write();
        assert!(transaction.is_torn() && !other.is_torn());
        written.end();
        assert!(!transaction.is_torn());
        let mut left = transaction.block();
        left.write();
        drop(left);
        assert!(transaction.is_torn());
    });
}

#[test]
fn only_blocks_that_write_and_do_not_end_tear_their_transaction() {
    only_blocks_that_write_and_do_not_end_tear_their_transaction_of(Mutant::NONE);
    must_fail(|| {
        let mutant = Mutant::of(Broken::ForgetsTornBlocks);
        only_blocks_that_write_and_do_not_end_tear_their_transaction_of(mutant);
    });
}
