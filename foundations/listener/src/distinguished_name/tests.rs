use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::*;

fn certificate(name: &str) -> Vec<u8> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/clients/testdata/tls"
    );
    let parsed = CertificateDer::from_pem_file(format!("{folder}/{name}.pem"));
    parsed.expect("a certificate").to_vec()
}

/// The expected texts are those that Java 17 returns for the same certificates.
#[test]
fn a_subject_is_written_as_javas_x500_principal_writes_it() {
    for (name, subject) in [
        ("client", "CN=kafka-1,OU=Brokers,O=Example\\, Inc.,C=DE"),
        (
            "odd-client",
            "2.5.4.12=#0c04426f7373,1.2.840.113549.1.9.1=#160b6140622e6578616d706c65,UID=u1+CN=\\ \\#a\\=b\\; \\\"ü\\\"\\ ,DC=example",
        ),
        ("stranger", "CN=stranger"),
    ] {
        assert_eq!(of_subject(&certificate(name)).as_deref(), Some(subject));
    }
}

#[test]
fn bytes_that_are_no_certificate_have_no_subject_and_cause_no_panic() {
    let whole = certificate("odd-client");
    for end in 0..whole.len() {
        assert_eq!(of_subject(&whole[..end]), None, "{end} bytes");
    }
    for at in 0..whole.len() {
        for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            let _ = of_subject(&damaged);
        }
    }
}

#[test]
fn values_of_every_string_type_are_read() {
    assert_eq!(text(0x14, b"\xfc").as_deref(), Some("ü"));
    assert_eq!(text(0x1e, b"\0a\0\xfc").as_deref(), Some("aü"));
    assert_eq!(text(0x03, b"\0a"), None, "a bit string is no text");
    assert_eq!(escaped("  "), "\\ \\ ");
    assert_eq!(escaped("a\0"), "a\\00");
}
