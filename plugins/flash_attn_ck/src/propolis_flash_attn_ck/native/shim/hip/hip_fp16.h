// Included, and not used.
#pragma once
