#!/bin/sh
# Makes the certificates of the tests anew, in this directory. They are valid for 100 years.
set -eu
cd "$(dirname "$0")"

# NAME SUBJECT AUTHORITY EXTENSIONS: a key and a certificate.
make() {
    openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1-key.pem"
    printf '%s\n' "$4" > extensions
    if [ "$3" = self ]; then signed="-signkey $1-key.pem"; else signed="-CA $3.pem -CAkey $3-key.pem"; fi
    openssl req -new -utf8 -nameopt utf8 -multivalue-rdn -key "$1-key.pem" -subj "$2" |
        openssl x509 -req -days 36500 -extfile extensions $signed -set_serial "0x$(openssl rand -hex 8)" -out "$1.pem"
    rm extensions
}

authority='basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign'
server='subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1
extendedKeyUsage=serverAuth,clientAuth'
client='extendedKeyUsage=clientAuth'

make ca '/CN=Landfast tests' self "$authority"
make other-ca '/CN=Another authority' self "$authority"
make server '/CN=server one' ca "$server"
make server-next '/CN=server two' ca "$server"
make client '/C=DE/O=Example, Inc./OU=Brokers/CN=kafka-1' ca "$client"
make odd-client '/DC=example/UID=u1+CN= #a=b\; "ü" /emailAddress=a@b.example/title=Boss' ca "$client"
make stranger '/CN=stranger' other-ca "$client"
# Nothing else needs these.
rm ca-key.pem other-ca-key.pem
