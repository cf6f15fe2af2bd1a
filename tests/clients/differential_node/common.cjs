exports.handler = async () => ["common", __filename, typeof require];
