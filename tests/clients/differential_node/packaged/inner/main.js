exports.handler = async () => __filename;
