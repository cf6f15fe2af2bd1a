module.exports = async () => "the function itself";
