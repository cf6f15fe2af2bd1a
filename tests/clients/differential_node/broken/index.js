exports.handler = async () => "beside a broken package.json";
