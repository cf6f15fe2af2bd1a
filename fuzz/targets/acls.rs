//! ACLs that clients set, encoded ACLs that are checked, and the texts of quotas.
#![no_main]

use coordination::{
    access::{Rules, decode, resolve, without_hashes},
    model::{Acl, Identity},
    quota::Amounts,
    records::Identities,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(amounts) = Amounts::parse(Some(bytes)) {
        // A text that becomes too long is malformed from then on.
        let again = Amounts::parse(Some(amounts.text().as_bytes()));
        assert!(again.is_none_or(|again| again.text() == amounts.text()));
    }
    let text = String::from_utf8_lossy(bytes);
    let mut identities = vec![Identity { scheme: "ip".into(), id: "127.0.0.1".into() }];
    let mut acl = Vec::new();
    for line in text.lines() {
        match line.split_once(' ') {
            Some((scheme, id)) => acl.push(Acl { permissions: 31, scheme: scheme.into(), id: id.into() }),
            None => {
                let user = line.split(':').next().unwrap_or_default();
                identities.push(Identity { scheme: "digest".into(), id: format!("{user}:hash") });
            }
        }
    }
    let _ = Rules::of(bytes).allow(&identities, 31);
    let _ = decode(bytes).map(without_hashes);
    if let Ok(encoded) = resolve(&acl, &Identities::of(&identities)) {
        let decoded = decode(&encoded).expect("it was encoded");
        assert!(decoded.iter().all(|entry| entry.scheme != "auth"), "it is resolved");
        let _ = Rules::of(&encoded).allow(&identities, 31);
    }
});
